// Sixteen floats at a time, for the source files that may use AVX512.
#pragma once
// GCC 12 warns of what its own intrinsics leave undefined on purpose.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <cstdint>

namespace headrace {

// The first `n` of 16 lanes; all of them from 16 upwards.
inline __mmask16 first_lanes(int64_t n) {
  return n >= 16 ? static_cast<__mmask16>(0xFFFF) : static_cast<__mmask16>((1u << n) - 1);
}

inline __m512 load_float(const float* x) { return _mm512_loadu_ps(x); }
inline __m512 load_float(const float* x, __mmask16 lanes) { return _mm512_maskz_loadu_ps(lanes, x); }
inline void store_float(float* y, __m512 v) { _mm512_storeu_ps(y, v); }
// To a multiple of 64 bytes. Other threads see it once the task is over: the pool has a fence for that.
inline void store_past_caches(float* y, __m512 v) { _mm512_stream_ps(y, v); }
inline void store_float(float* y, __m512 v, __mmask16 lanes) { _mm512_mask_storeu_ps(y, lanes, v); }

// A bfloat16 is the upper half of a float.
inline __m512 widen(__m256i bits) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

// Rounds to the nearest, of two equally near to the even one.
inline __m256i round_to_bfloat16(__m512 v) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v)); }

inline __m512 load_bfloat16(const uint16_t* x) {
  return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
}
inline __m512 load_bfloat16(const uint16_t* x, __mmask16 lanes) { return widen(_mm256_maskz_loadu_epi16(lanes, x)); }
inline void store_bfloat16(uint16_t* y, __m512 v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(y), round_to_bfloat16(v));
}
inline void store_bfloat16(uint16_t* y, __m512 first, __m512 second) {
  _mm512_storeu_si512(y, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first)));
}
inline void store_bfloat16(uint16_t* y, __m512 v, __mmask16 lanes) {
  _mm256_mask_storeu_epi16(y, lanes, round_to_bfloat16(v));
}

// exp(x) within 2e-7 of it, relatively. Exactly 1 at 0, and exactly 0 at -inf and wherever a float is too small.
// x = n ln 2 + r, where |r| <= ln 2 / 2: the polynomial is that of the Cephes library, and 2^n is applied exactly.
inline __m512 vexp(__m512 x) {
  // Beyond these bounds the result is 0 or inf anyway. The order of the operands lets a NaN through.
  x = _mm512_min_ps(_mm512_set1_ps(89.0f), _mm512_max_ps(_mm512_set1_ps(-105.0f), x));
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);  // ln 2 in two parts, the first exact times n
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  __m512 p = _mm512_set1_ps(1.9875691500e-4f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
  p = _mm512_fmadd_ps(_mm512_mul_ps(r, r), p, r);
  return _mm512_scalef_ps(_mm512_add_ps(p, _mm512_set1_ps(1.0f)), n);
}

// 2^x within 2e-7 of it, relatively. Exactly 1 at 0, and 0 below -126: a denormal would take 200 cycles.
inline __m512 exp2_of(__m512 x) {
  const __mmask16 is_normal = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);  // or a NaN
  const __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);  // x less floor(x)
  __m512 p = _mm512_set1_ps(1.867130087e-3f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.017030275e-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.579991315e-2f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.401644501e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.931513118e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_maskz_scalef_ps(is_normal, p, x);  // times 2^floor(x)
}

// x * sigmoid(x)
inline __m512 silu(__m512 x) {
  const __m512 exponent = _mm512_mul_ps(x, _mm512_set1_ps(-1.44269504f));
  return _mm512_div_ps(x, _mm512_add_ps(exp2_of(exponent), _mm512_set1_ps(1.0f)));
}

// In the form with tanh: x / 2 * (1 + tanh(u)) = x * sigmoid(2 u), u = sqrt(2 / pi) * (x + 0.044715 x^3).
inline __m512 gelu(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0f);
  const __m512 cubic = _mm512_fmadd_ps(_mm512_mul_ps(x, x), _mm512_set1_ps(0.044715f), one);
  const __m512 exponent = _mm512_mul_ps(_mm512_mul_ps(x, _mm512_set1_ps(-1.59576912f * 1.44269504f)), cubic);
  return _mm512_div_ps(x, _mm512_add_ps(exp2_of(exponent), one));
}

inline __m256 lower_half(__m512 v) { return _mm512_castps512_ps256(v); }
inline __m256 upper_half(__m512 v) { return _mm512_extractf32x8_ps(v, 1); }

// Always in this order: halves, then halves of them.
inline float horizontal_sum(__m512 v) {
  const __m256 eight = _mm256_add_ps(lower_half(v), upper_half(v));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// Of lanes without a NaN.
inline float horizontal_max(__m512 v) {
  const __m256 eight = _mm256_max_ps(lower_half(v), upper_half(v));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

}  // namespace headrace
