// What becomes of a panel's sums, whatever format the weights had.
#pragma once
#include "linear.h"
#include "vector512.h"

namespace headrace {

// Results of so many columns are logits: megabytes, of which the caches would keep little until they are read.
constexpr int64_t kPastCachesColumns = 16384;

inline void store_columns(const LinearArguments& a, int64_t row, int64_t column, __m512 v) {
  const int64_t at = row * a.out_stride + column;
  if (a.out_kind == kFloat && a.n >= kPastCachesColumns) {
    store_past_caches(static_cast<float*>(a.out) + at, v);
  } else if (a.out_kind == kFloat) {
    store_float(static_cast<float*>(a.out) + at, v);
  } else {
    store_bfloat16(static_cast<uint16_t*>(a.out) + at, v);
  }
}

// 16 sums of the panel's columns from `column` on, with their bias.
inline __m512 with_bias(const LinearArguments& a, const float* sums, int64_t panel, int64_t column) {
  const __m512 v = load_float(sums + column);
  return a.bias ? _mm512_add_ps(v, load_float(a.bias + panel * kPanel + column)) : v;
}

// Writes one row of the result in the columns of `panel`, from its 64 sums.
inline void finish_row(const LinearArguments& a, const float* sums, int64_t row, int64_t panel) {
  constexpr int64_t kHalf = kPanel / 2;
  if (a.epilogue == kPlain) {
    for (int64_t j = 0; j < kPanel; j += 16) store_columns(a, row, panel * kPanel + j, with_bias(a, sums, panel, j));
    return;
  }
  for (int64_t j = 0; j < kHalf; j += 16) {
    const __m512 gate = with_bias(a, sums, panel, j);
    const __m512 active = a.epilogue == kSiluGated ? silu(gate) : gelu(gate);
    const __m512 gated = _mm512_mul_ps(active, with_bias(a, sums, panel, kHalf + j));
    store_columns(a, row, panel * kHalf + j, gated);
  }
}

}  // namespace headrace
