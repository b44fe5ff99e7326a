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

// 16 of the sums of a half panel's columns, with their bias.
inline __m512 with_bias(const LinearArguments& a, const float* sums, int64_t half, int64_t column) {
  const __m512 v = load_float(sums + column);
  return a.bias ? _mm512_add_ps(v, load_float(a.bias + half * kHalf + column)) : v;
}

// Writes what a row of x and the `half`-th half of a panel give, from their 32 sums.
inline void finish_half(const LinearArguments& a, const float* sums, int64_t row, int64_t half) {
  const __m512 first = with_bias(a, sums, half, 0), second = with_bias(a, sums, half, kGates);
  if (a.epilogue == kPlain) {
    store_columns(a, row, half * kHalf, first);
    store_columns(a, row, half * kHalf + kGates, second);
  } else {
    const __m512 active = a.epilogue == kSiluGated ? silu(first) : gelu(first);
    store_columns(a, row, half * kGates, _mm512_mul_ps(active, second));
  }
}

}  // namespace headrace
