// What comes before attention, sixteen elements at a time.
#pragma once
#include <cmath>
#include <cstring>

#include "rotate.h"
#include "vector512.h"

namespace headrace {
namespace {

struct Rotation512 {
  using Elements = __m512;
  static constexpr int64_t kLanes = 16;

  static __m512 all(float x) { return _mm512_set1_ps(x); }
  static __m512 load(const float* x) { return load_float(x); }
  static __m512 load(const uint16_t* x) { return load_bfloat16(x); }
  static __m512 multiply_add(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
  static __m512 multiply_subtract(__m512 a, __m512 b, __m512 c) { return _mm512_fmsub_ps(a, b, c); }

  static float sum_of_squares(const uint16_t* x, int64_t dim) {
    __m512 squares = _mm512_setzero_ps();
    for (int64_t i = 0; i < dim; i += 16) squares = _mm512_fmadd_ps(load(x + i), load(x + i), squares);
    return horizontal_sum(squares);
  }

  static void store(uint16_t* to, __m512 elements) { store_bfloat16(to, elements); }

  static void store_key(uint16_t* to, __m512 elements) {
    alignas(32) uint16_t rounded[16];
    store_bfloat16(rounded, elements);
    for (int i = 0; i < 8; ++i) std::memcpy(to + i * kPairStride, rounded + i * 2, 4);
  }

  // Sixteen elements of one token, each beside the same element of its pair's other token.
  static void store_value(uint16_t* to, bool is_second, __m512 elements) {
    const __m512i low = _mm512_cvtepu16_epi32(round_to_bfloat16(elements));
    if (is_second)
      _mm512_mask_storeu_epi16(to - 1, 0xAAAAAAAA, _mm512_slli_epi32(low, 16));
    else
      _mm512_mask_storeu_epi16(to, 0x55555555, low);
  }

  class Largest {
   public:
    void add(__m512 elements) {
      largest_ = _mm512_max_ps(largest_, _mm512_abs_ps(elements));
      nans_ |= _mm512_cmp_ps_mask(elements, elements, _CMP_UNORD_Q);  // which a maximum need not keep
    }
    float scale() const { return nans_ ? NAN : horizontal_max(largest_) / kLargestInt8; }

   private:
    __m512 largest_ = _mm512_setzero_ps();
    __mmask16 nans_ = 0;
  };

  static __m128i quantize(__m512 elements, __m512 inverse) {
    return _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(elements, inverse)));
  }

  static void store_together(int8_t* to, __m128i quants) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), quants);
  }

  static void store_apart(int8_t* to, __m128i quants) {
    alignas(16) int8_t each[16];
    _mm_store_si128(reinterpret_cast<__m128i*>(each), quants);
    for (int lane = 0; lane < 16; ++lane) to[lane * kGroup] = each[lane];
  }
};

}  // namespace
}  // namespace headrace
