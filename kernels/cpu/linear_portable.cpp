// Linear layers and embeddings without instructions of one machine, in plain C++.
#define HEADRACE_SET portable
#include <algorithm>
#include <cmath>
#include <cstring>

#include "bfloat16.h"
#include "bfloat16_panels.h"
#include "linear.h"

namespace headrace {
namespace portable {
namespace {

constexpr int64_t kMaxRows = 4;  // computed together, for which the registers suffice

// The compiler's own vectors, of whatever registers there are.
typedef float Floats __attribute__((vector_size(32)));
typedef uint32_t Bits __attribute__((vector_size(32)));
constexpr int64_t kLanes = 8;

// Adds to the sums of 16 columns what one pair of columns of x gives.
template <int kRows>
inline void add_pair(const uint16_t* x, int64_t x_stride, const uint16_t* weight, Floats (&sums)[kRows][2]) {
  for (int half = 0; half < 2; ++half) {
    Bits pairs;
    std::memcpy(&pairs, weight + half * 2 * kLanes, sizeof pairs);
    const Bits lower = pairs << 16, upper = pairs & 0xFFFF0000u;
    for (int r = 0; r < kRows; ++r) {
      const uint16_t* pair = x + r * x_stride;
      sums[r][half] += reinterpret_cast<Floats>(lower) * widen(pair[0]);
      sums[r][half] += reinterpret_cast<Floats>(upper) * widen(pair[1]);
    }
  }
}

// sums [kRows, 32], of which it fills the 16 columns of one tile.
template <int kRows>
void multiply_tile(const LinearArguments& a, const uint16_t* x, const uint16_t* weight, float* sums) {
  Floats total[kRows][2] = {};
  for (int64_t k = 0; k < a.k; k += kStepColumns, weight += kStep)
    for (int64_t pair = 0; pair < kStepColumns / 2; ++pair)
      add_pair<kRows>(x + k + 2 * pair, a.x_stride, weight + pair * kPairOfTile, total);
  for (int r = 0; r < kRows; ++r) std::memcpy(sums + r * kHalf, total[r], sizeof total[r]);
}

inline float silu(float x) { return x / (1.0f + std::exp(-x)); }

inline float gelu(float x) {
  return 0.5f * x * (1.0f + std::tanh(0.797884561f * (x + 0.044715f * x * x * x)));
}

inline void store(const LinearArguments& a, int64_t row, int64_t column, float x) {
  const int64_t at = row * a.out_stride + column;
  if (a.out_kind == kFloat) {
    static_cast<float*>(a.out)[at] = x;
  } else {
    static_cast<uint16_t*>(a.out)[at] = round_to_bfloat16(x);
  }
}

// Writes what a row of x and the `half`-th half of a panel give, from their sums, which it changes.
inline void finish_half(const LinearArguments& a, float* sums, int64_t row, int64_t half) {
  if (a.bias)
    for (int64_t j = 0; j < kHalf; ++j) sums[j] += a.bias[half * kHalf + j];
  if (a.epilogue == kPlain) {
    for (int64_t j = 0; j < kHalf; ++j) store(a, row, half * kHalf + j, sums[j]);
    return;
  }
  for (int64_t j = 0; j < kGates; ++j) {
    const float active = a.epilogue == kSiluGated ? silu(sums[j]) : gelu(sums[j]);
    store(a, row, half * kGates + j, active * sums[kGates + j]);
  }
}

template <int kRows>
void multiply_rows(const LinearArguments& a, int64_t row, int64_t half) {
  const uint16_t* weight = half_panel(a.weight, a.k, half);
  const uint16_t* x = a.x + row * a.x_stride;
  float sums[kRows * kHalf];
  for (int64_t tile = 0; tile < kHalf / kTileColumns; ++tile)
    multiply_tile<kRows>(a, x, weight + tile * kTile, sums + tile * kTileColumns);
  for (int r = 0; r < kRows; ++r) finish_half(a, sums + r * kHalf, row + r, half);
}

void linear_bf16(const void* words, const Context& context) {
  const auto& a = arguments<LinearArguments>(words);
  const int64_t num_rows = num_rows_of(a.extent, context.step);
  context.pool.run(a.n / kHalf, [&](int64_t half) {
    int64_t row = 0;
    for (; row + kMaxRows <= num_rows; row += kMaxRows) multiply_rows<kMaxRows>(a, row, half);
    for (; row < num_rows; ++row) multiply_rows<1>(a, row, half);
  });
}

void embedding_bf16(const void* words, const Context& context) {
  const auto& a = arguments<EmbeddingArguments>(words);
  const float scale = static_cast<float>(a.scale);
  context.pool.run(context.step.num_tokens, [&](int64_t token) {
    const int64_t id = context.step.input_ids[token];
    const uint16_t* row =
        half_panel(a.weight, a.k, id / kHalf) + id % kHalf / kTileColumns * kTile + id % kTileColumns * 2;
    float* out = a.out + token * a.out_stride;
    for (int64_t k = 0; k < a.k; k += 2) {
      const uint16_t* pair = row + k / kStepColumns * kStep + k % kStepColumns / 2 * kPairOfTile;
      out[k] = widen(pair[0]) * scale;
      out[k + 1] = widen(pair[1]) * scale;
    }
  });
}

}  // namespace
}  // namespace portable

extern const Entry kLinearPortable[] = {
    {"linear_bf16", portable::linear_bf16}, {"embedding_bf16", portable::embedding_bf16}, {nullptr, nullptr}};

}  // namespace headrace
