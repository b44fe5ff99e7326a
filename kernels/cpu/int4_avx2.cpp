// int4 on AVX2, by the quants as they are packed, which have no sign, as the instruction wants it: the sums of eight
// products with x, at most 8 * 2 * 15 * 127, fit in its 16 bits, two for each row of the weight.
#include <immintrin.h>

#include "int4.h"
#include "row_groups.h"

namespace headrace {
namespace {

constexpr int64_t kPrefetchedAhead = 4 * kInt4Tile;
constexpr int kStrips = 4;  // of 8 rows of the weight, in half a panel

struct QuantizedRows {
  int64_t k;
  int8_t* quants;  // [rows][k]
  int32_t* sums;   // [rows][k / 32]
  float* scales;   // [rows]
};

inline void quantize_row(const LinearArguments& a, int64_t row, const QuantizedRows& x) {
  const int8_t* q = x.quants + row * x.k;
  x.scales[row] = quantize_row(a.x + row * a.x_stride, x.k, 0, x.quants + row * x.k, kInt8Block);
  for (int64_t i = 0; i < x.k; i += kInt4Group) {
    int32_t sum = 0;
    for (int64_t j = 0; j < kInt4Group; ++j) sum += q[i + j];
    x.sums[(row * x.k + i) / kInt4Group] = sum;
  }
}

inline QuantizedRows quantize_rows(const LinearArguments& a, int64_t num_rows, Pool& pool) {
  uint8_t* memory = scratch(Scratch::kActivations, num_rows * (a.k + a.k / 8 + 4));
  auto* sums = reinterpret_cast<int32_t*>(memory + num_rows * a.k);
  auto* scales = reinterpret_cast<float*>(sums + num_rows * a.k / kInt4Group);
  const QuantizedRows x{a.k, reinterpret_cast<int8_t*>(memory), sums, scales};
  pool.run(num_rows, [&](int64_t row) { quantize_row(a, row, x); });
  return x;
}

// A group of 8 of a tile's rows, as bytes from 0 to 15, and what they are to be multiplied by.
struct Strip {
  __m256i quads[8];
  __m256i steps;   // int16, each twice
  __m256i lowest;  // what quants of 0 stand for, int16, each beside a 0

  Strip(const uint8_t* tile, int64_t group, int strip) {
    const __m256i nibble = _mm256_set1_epi8(15);
    for (int64_t i = 0; i < 4; ++i) {
      const uint8_t* at = int4_quants(tile, group) + i * 64 + strip * 32;
      const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
      quads[2 * i] = _mm256_and_si256(both, nibble);
      quads[2 * i + 1] = _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble);
    }
    const uint8_t* at = int4_steps(tile, group) + strip * 16;
    const __m256i pairs = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
    const __m256i step = _mm256_and_si256(pairs, _mm256_set1_epi32(0xFFFF));
    steps = _mm256_or_si256(step, _mm256_slli_epi32(step, 16));
    const __m256i least = _mm256_sub_epi32(_mm256_srai_epi32(pairs, 16), _mm256_slli_epi32(step, 3));
    lowest = _mm256_and_si256(least, _mm256_set1_epi32(0xFFFF));
  }

  // What the group adds to the sums of 8 rows of the weight with one of x.
  __m256i multiply(const int8_t* x, int32_t sum) const {
    __m256i products = _mm256_setzero_si256();
    for (int i = 0; i < 8; ++i) {
      int32_t four;
      std::memcpy(&four, x + i * kQuad, sizeof four);
      products = _mm256_add_epi16(products, _mm256_maddubs_epi16(quads[i], _mm256_set1_epi32(four)));
    }
    return _mm256_add_epi32(_mm256_madd_epi16(products, steps), _mm256_madd_epi16(lowest, _mm256_set1_epi32(sum)));
  }
};

// sums [kRows, 32] of half a panel.
template <int kRows>
void multiply_half(const uint8_t* tiles, const QuantizedRows& x, int64_t row, int32_t* sums) {
  __m256i total[kRows][kStrips];
  for (auto& of_row : total)
    for (__m256i& strip : of_row) strip = _mm256_setzero_si256();
  for (int64_t group = 0; group < x.k / kInt4Group; ++group) {
    const uint8_t* block = tiles + group / 2 * 2 * kInt4Tile;
    for (int64_t line = 0; line < kInt4Tile; line += 64)
      _mm_prefetch(reinterpret_cast<const char*>(block + group % 2 * kInt4Tile + line + kPrefetchedAhead), _MM_HINT_T0);
    for (int i = 0; i < kStrips; ++i) {
      const Strip strip(block + i / 2 * kInt4Tile, group % 2, i % 2);
      for (int r = 0; r < kRows; ++r) {
        const int64_t column = (row + r) * x.k + group * kInt4Group;
        total[r][i] = _mm256_add_epi32(total[r][i], strip.multiply(x.quants + column, x.sums[column / kInt4Group]));
      }
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int i = 0; i < kStrips; ++i)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + r * kHalf + i * 8), total[r][i]);
}

// The columns of the result that half a panel gives, of kRows rows of x from `row` on.
template <int kRows>
void multiply_rows(const LinearArguments& a, const QuantizedRows& x, int64_t row, int64_t half) {
  const Int4Panel panel = int4_panel(a.weight, a.k, half / 2);
  int32_t sums[kRows * kHalf];
  multiply_half<kRows>(panel.tile(half % 2, 0, 0), x, row, sums);
  for (int i = 0; i < kRows; ++i)
    finish_sums(sums + i * kHalf, x.scales[row + i], panel.scales + half % 2 * kHalf, a, row + i, half);
}

void linear_int4(const void* words, const Context& context) {
  const auto& a = arguments<LinearArguments>(words);
  const int64_t num_rows = num_rows_of(a.extent, context.step);
  const QuantizedRows x = quantize_rows(a, num_rows, context.pool);
  share_row_groups(a, num_rows, a.k, context.pool,
                   [&](auto rows, int64_t row, int64_t half) { multiply_rows<rows>(a, x, row, half); });
}

}  // namespace

extern const Entry kInt4Avx2[] = {{"linear_int4", linear_int4}, {nullptr, nullptr}};

}  // namespace headrace
