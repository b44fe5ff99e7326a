// Eight floats at a time, for the source files that may use AVX2.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace headrace {

inline __m256 load_float(const float* x) { return _mm256_loadu_ps(x); }
inline void store_float(float* y, __m256 v) { _mm256_storeu_ps(y, v); }

// A bfloat16 is the upper half of a float. Of eight pairs, the first ones and the second ones.
inline __m256i load_pairs(const uint16_t* x) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)); }
inline __m256 first_of(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
inline __m256 second_of(__m256i pairs) {
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int32_t>(0xFFFF0000))));
}

inline __m256 load_bfloat16(const uint16_t* x) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
  return first_of(_mm256_cvtepu16_epi32(bits));
}

// Rounds to the nearest, of two equally near to the even one; a NaN stays one. In the lower halves of 32 bits each.
inline __m256i rounded_bits(__m256 v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i is_odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), is_odd);
  const __m256 is_nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
  const __m256 nan = _mm256_castsi256_ps(_mm256_or_si256(bits, _mm256_set1_epi32(0x400000)));
  return _mm256_srli_epi32(_mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(rounded), nan, is_nan)), 16);
}
inline __m128i round_to_bfloat16(__m256 v) {
  const __m256i bits = rounded_bits(v);
  return _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
}
inline void store_bfloat16(uint16_t* y, __m256 v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(y), round_to_bfloat16(v));
}

// 2^x within 2e-7 of it, relatively, as at 127.99 above it. Exactly 1 at 0, and 0 below -126: a denormal would take 200
// cycles.
inline __m256 exp2_of(__m256 x) {
  x = _mm256_min_ps(_mm256_set1_ps(127.99f), x);  // in this order a NaN gets through
  const __m256 is_normal = _mm256_cmp_ps(x, _mm256_set1_ps(-126.0f), _CMP_NLT_UQ);  // or a NaN
  const __m256 floor = _mm256_floor_ps(x);
  const __m256 f = _mm256_sub_ps(x, floor);
  __m256 p = _mm256_set1_ps(1.867130087e-3f);
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(9.017030275e-3f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(5.579991315e-2f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(2.401644501e-1f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(6.931513118e-1f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(floor), _mm256_set1_epi32(127));
  const __m256 power = _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
  return _mm256_and_ps(_mm256_mul_ps(p, power), is_normal);
}

// x * sigmoid(x)
inline __m256 silu(__m256 x) {
  const __m256 exponent = _mm256_mul_ps(x, _mm256_set1_ps(-1.44269504f));
  return _mm256_div_ps(x, _mm256_add_ps(exp2_of(exponent), _mm256_set1_ps(1.0f)));
}

// In the form with tanh: x / 2 * (1 + tanh(u)) = x * sigmoid(2 u), u = sqrt(2 / pi) * (x + 0.044715 x^3).
inline __m256 gelu(__m256 x) {
  const __m256 one = _mm256_set1_ps(1.0f);
  const __m256 cubic = _mm256_fmadd_ps(_mm256_mul_ps(x, x), _mm256_set1_ps(0.044715f), one);
  const __m256 exponent = _mm256_mul_ps(_mm256_mul_ps(x, _mm256_set1_ps(-1.59576912f * 1.44269504f)), cubic);
  return _mm256_div_ps(x, _mm256_add_ps(exp2_of(exponent), one));
}

// Always in this order: halves, then halves of them.
inline float horizontal_sum(__m256 eight) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// Of lanes without a NaN.
inline float horizontal_max(__m256 eight) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

}  // namespace headrace
