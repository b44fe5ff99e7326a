// Linear layers and embeddings over weights quantized in groups, on AVX2.
#include <immintrin.h>

#include "grouped_generic.h"

namespace headrace {
namespace {

// The instruction multiplies unsigned bytes by signed ones, so the weights' signs go to x. Two products of at most
// 128 * 127 still fit in its 16 bits.
struct Avx2Dot {
  template <int kQuads>
  static void multiply(const int8_t (&quads)[kQuads][kColumnTile * 4], const int8_t* x, int32_t* products) {
    __m256i sums[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (int i = 0; i < kQuads; ++i) {
      int32_t four;
      std::memcpy(&four, x + i * 4, sizeof four);
      for (int half = 0; half < 2; ++half) {
        const auto weights = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(quads[i] + half * 32));
        const __m256i signed_x = _mm256_sign_epi8(_mm256_set1_epi32(four), weights);
        const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), signed_x);
        sums[half] = _mm256_add_epi32(sums[half], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
      }
    }
    for (int half = 0; half < 2; ++half)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(products + half * 8), sums[half]);
  }
};

template <class F>
using Panel = UnpackedPanel<Avx2Dot, F>;

}  // namespace

extern const Entry* const kGroupedAvx2 = kLinearGrouped<Panel>;
extern const Entry* const kGroupedEmbeddingAvx2 = kEmbeddingGrouped;

}  // namespace headrace
