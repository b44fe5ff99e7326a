#include "elementwise.h"
#include "linear.h"
#include "rows.h"
#include "vector512.h"

namespace headrace {
namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kVectors = 4;  // sums side by side, so that none waits for the one before it

__m512 load(const float* x, __mmask16 lanes) { return load_float(x, lanes); }
__m512 load(const uint16_t* x, __mmask16 lanes) { return load_bfloat16(x, lanes); }
void store(float* y, __m512 v, __mmask16 lanes) { store_float(y, v, lanes); }
void store(uint16_t* y, __m512 v, __mmask16 lanes) { store_bfloat16(y, v, lanes); }

template <class X>
float inverse_rms(const X* x, int64_t dim, double eps) {
  __m512 sums[kVectors] = {};
  for (int64_t i = 0; i < dim; i += kVectors * kLanes) {
    for (int64_t j = 0; j < kVectors; ++j) {
      const int64_t column = i + j * kLanes;
      if (column >= dim) break;
      const __m512 v = load(x + column, first_lanes(dim - column));
      sums[j] = _mm512_fmadd_ps(v, v, sums[j]);
    }
  }
  const __m512 sum = _mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3]));
  const __m128 mean = _mm_set_ss(horizontal_sum(sum) / static_cast<float>(dim) + static_cast<float>(eps));
  return 1.0f / _mm_cvtss_f32(_mm_sqrt_ss(mean));
}

template <class X, class Y>
void normalize_row(const X* x, const float* weight, Y* y, int64_t dim, double eps) {
  const __m512 inverse = _mm512_set1_ps(inverse_rms(x, dim, eps));
  for (int64_t i = 0; i < dim; i += kLanes) {
    const __mmask16 lanes = first_lanes(dim - i);
    const __m512 v = _mm512_mul_ps(load(x + i, lanes), inverse);
    store(y + i, _mm512_mul_ps(v, load_float(weight + i, lanes)), lanes);
  }
}

template <class X, class Y>
void normalize_rows(const RmsNormArguments& a, const Context& context) {
  share_rows(context.pool, num_rows_of(a.extent, context.step), a.dim, [&](int64_t row) {
    const X* x = static_cast<const X*>(a.x) + row * a.x_stride;
    normalize_row(x, a.weight, static_cast<Y*>(a.y) + row * a.y_stride, a.dim, a.eps);
  });
}

void rms_norm(const void* words, const Context& context) {
  const auto& a = arguments<RmsNormArguments>(words);
  if (a.x_kind == kFloat) {
    a.y_kind == kFloat ? normalize_rows<float, float>(a, context) : normalize_rows<float, uint16_t>(a, context);
  } else {
    a.y_kind == kFloat ? normalize_rows<uint16_t, float>(a, context) : normalize_rows<uint16_t, uint16_t>(a, context);
  }
}

template <class X>
void add_row(const X* x, float* residual, int64_t dim) {
  for (int64_t i = 0; i < dim; i += kLanes) {
    const __mmask16 lanes = first_lanes(dim - i);
    store_float(residual + i, _mm512_add_ps(load_float(residual + i, lanes), load(x + i, lanes)), lanes);
  }
}

template <class X>
void add_and_normalize_rows(const AddRmsNormArguments& a, const Context& context) {
  share_rows(context.pool, context.step.num_tokens, a.dim, [&](int64_t row) {
    float* residual = a.residual + row * a.residual_stride;
    add_row(static_cast<const X*>(a.x) + row * a.x_stride, residual, a.dim);
    normalize_row(residual, a.weight, a.y + row * a.y_stride, a.dim, a.eps);
  });
}

void add_rms_norm(const void* words, const Context& context) {
  const auto& a = arguments<AddRmsNormArguments>(words);
  a.x_kind == kFloat ? add_and_normalize_rows<float>(a, context) : add_and_normalize_rows<uint16_t>(a, context);
}

}  // namespace

extern const Entry kElementwiseAvx512[] = {
    {"rms_norm", rms_norm}, {"add_rms_norm", add_rms_norm}, {nullptr, nullptr}};

}  // namespace headrace
