// What comes before attention, eight elements at a time.
#pragma once
#include <cmath>
#include <cstring>

#include "rotate.h"
#include "vector256.h"

namespace headrace {
namespace {

struct Rotation256 {
  using Elements = __m256;
  static constexpr int64_t kLanes = 8;

  static __m256 all(float x) { return _mm256_set1_ps(x); }
  static __m256 load(const float* x) { return load_float(x); }
  static __m256 load(const uint16_t* x) { return load_bfloat16(x); }
  static __m256 multiply_add(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }
  static __m256 multiply_subtract(__m256 a, __m256 b, __m256 c) { return _mm256_fmsub_ps(a, b, c); }

  static float sum_of_squares(const uint16_t* x, int64_t dim) {
    __m256 squares = _mm256_setzero_ps();
    for (int64_t i = 0; i < dim; i += 8) squares = _mm256_fmadd_ps(load(x + i), load(x + i), squares);
    return horizontal_sum(squares);
  }

  static void store(uint16_t* to, __m256 elements) { store_bfloat16(to, elements); }

  static void store_key(uint16_t* to, __m256 elements) {
    uint16_t rounded[8];
    store_bfloat16(rounded, elements);
    for (int i = 0; i < 4; ++i) std::memcpy(to + i * kPairStride, rounded + i * 2, 4);
  }

  // Each beside the same element of its pair's other token, which another thread may be writing.
  static void store_value(uint16_t* to, bool /*is_second*/, __m256 elements) {
    uint16_t rounded[8];
    store_bfloat16(rounded, elements);
    for (int i = 0; i < 8; ++i) to[i * 2] = rounded[i];
  }

  class Largest {
   public:
    void add(__m256 elements) {
      largest_ = _mm256_max_ps(largest_, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), elements));
      nans_ = _mm256_or_ps(nans_, _mm256_cmp_ps(elements, elements, _CMP_UNORD_Q));  // which a maximum need not keep
    }
    float scale() const { return _mm256_movemask_ps(nans_) ? NAN : horizontal_max(largest_) / kLargestInt8; }

   private:
    __m256 largest_ = _mm256_setzero_ps(), nans_ = _mm256_setzero_ps();
  };

  // Beside a NaN or an infinity any int8 will do: the scale is none that gives a number.
  static __m128i quantize(__m256 elements, __m256 inverse) {
    const __m256i quants = _mm256_cvtps_epi32(_mm256_mul_ps(elements, inverse));
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(quants), _mm256_extracti128_si256(quants, 1));
    return _mm_packs_epi16(words, words);
  }

  static void store_together(int8_t* to, __m128i quants) { _mm_storel_epi64(reinterpret_cast<__m128i*>(to), quants); }

  static void store_apart(int8_t* to, __m128i quants) {
    int8_t each[8];
    store_together(each, quants);
    for (int lane = 0; lane < 8; ++lane) to[lane * kGroup] = each[lane];
  }
};

}  // namespace
}  // namespace headrace
