// Norms without instructions of one machine: plain loops, which the compiler turns into vectors of whatever there is.
#pragma once
#include "bfloat16.h"
#include "elementwise.h"
#include "linear.h"
#include "rows.h"

namespace headrace {
namespace HEADRACE_SET {

constexpr int64_t kLanes = 16;  // sums side by side; in one order whatever vectors the compiler makes of them

inline float load(const float* x) { return *x; }
inline float load(const uint16_t* x) { return widen(*x); }
inline void store(float* y, float value) { *y = value; }
inline void store(uint16_t* y, float value) { *y = round_to_bfloat16(value); }

template <class X>
float inverse_rms(const X* x, int64_t dim, double eps) {
  float sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= dim; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += load(x + i + lane) * load(x + i + lane);
  for (int64_t lane = 0; i + lane < dim; ++lane) sums[lane] += load(x + i + lane) * load(x + i + lane);
  for (int64_t half = kLanes / 2; half > 0; half /= 2)
    for (int64_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  return 1.0f / std::sqrt(sums[0] / static_cast<float>(dim) + static_cast<float>(eps));
}

template <class X, class Y>
void normalize_row(const X* x, const float* weight, Y* y, int64_t dim, double eps) {
  const float inverse = inverse_rms(x, dim, eps);
  for (int64_t i = 0; i < dim; ++i) store(y + i, load(x + i) * inverse * weight[i]);
}

template <class X, class Y>
void normalize_rows(const RmsNormArguments& a, const Context& context) {
  share_rows(context.pool, num_rows_of(a.extent, context.step), a.dim, [&](int64_t row) {
    const X* x = static_cast<const X*>(a.x) + row * a.x_stride;
    normalize_row(x, a.weight, static_cast<Y*>(a.y) + row * a.y_stride, a.dim, a.eps);
  });
}

inline void rms_norm(const void* words, const Context& context) {
  const auto& a = arguments<RmsNormArguments>(words);
  if (a.x_kind == kFloat) {
    a.y_kind == kFloat ? normalize_rows<float, float>(a, context) : normalize_rows<float, uint16_t>(a, context);
  } else {
    a.y_kind == kFloat ? normalize_rows<uint16_t, float>(a, context) : normalize_rows<uint16_t, uint16_t>(a, context);
  }
}

template <class X>
void add_and_normalize_rows(const AddRmsNormArguments& a, const Context& context) {
  share_rows(context.pool, context.step.num_tokens, a.dim, [&](int64_t row) {
    const X* x = static_cast<const X*>(a.x) + row * a.x_stride;
    float* residual = a.residual + row * a.residual_stride;
    for (int64_t i = 0; i < a.dim; ++i) residual[i] += load(x + i);
    normalize_row(residual, a.weight, a.y + row * a.y_stride, a.dim, a.eps);
  });
}

inline void add_rms_norm(const void* words, const Context& context) {
  const auto& a = arguments<AddRmsNormArguments>(words);
  a.x_kind == kFloat ? add_and_normalize_rows<float>(a, context) : add_and_normalize_rows<uint16_t>(a, context);
}

}  // namespace HEADRACE_SET
}  // namespace headrace
