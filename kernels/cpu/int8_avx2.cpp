// int8 on AVX2, whose instruction multiplies unsigned bytes by signed ones: the weights lose their signs, and rows of x
// take them. Its sums of two products, at most 2 * 128 * 127, fit in their 16 bits.
#include <immintrin.h>

#include "int8.h"
#include "row_groups.h"

namespace headrace {
namespace {

constexpr int64_t kPrefetchedAhead = 4 * kInt8Tile;
constexpr int kStrips = 4;                           // of 8 rows of the weight, in half a panel

struct QuantizedRows {
  int64_t k;
  int8_t* quants;  // [rows][k]
  float* scales;   // [rows]

  const int8_t* row(int64_t i) const { return quants + i * k; }
};

QuantizedRows quantize_rows(const LinearArguments& a, int64_t num_rows, Pool& pool) {
  uint8_t* memory = scratch(Scratch::kActivations, num_rows * (a.k + int64_t{sizeof(float)}));
  const QuantizedRows x{a.k, reinterpret_cast<int8_t*>(memory), reinterpret_cast<float*>(memory + num_rows * a.k)};
  pool.run(num_rows, [&](int64_t row) {
    x.scales[row] = quantize_row(a.x + row * a.x_stride, a.k, 0, x.quants + row * a.k, kInt8Block);
  });
  return x;
}

// Rows of the weight in vectors of eight, each with a quad of columns.
inline __m256i load_quads(const int8_t* weight) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weight)); }

inline __m256i broadcast_quad(const int8_t* x) {
  int32_t quad;
  std::memcpy(&quad, x, sizeof quad);
  return _mm256_set1_epi32(quad);
}

// sums [kRows, 8 * kTogether], of strips of half a panel from `weight` on.
template <int kRows, int kTogether>
void multiply_strips(const int8_t* x, int64_t k, const int8_t* weight, int32_t* sums) {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i total[kRows][kTogether];
  for (auto& of_row : total)
    for (__m256i& strip : of_row) strip = _mm256_setzero_si256();
  for (int64_t column = 0; column < k; column += kInt8Block, weight += 2 * kInt8Tile)
    for (int64_t quad = 0; quad < kInt8Block / kQuad; ++quad)
      for (int i = 0; i < kTogether; ++i) {
        const int8_t* at = weight + i / 2 * kInt8Tile + quad * kInt8TileRows * kQuad + i % 2 * 32;
        if (i % 2 == 0) _mm_prefetch(reinterpret_cast<const char*>(at + kPrefetchedAhead), _MM_HINT_T0);
        const __m256i quads = load_quads(at);
        const __m256i magnitudes = _mm256_abs_epi8(quads);
        for (int row = 0; row < kRows; ++row) {
          const __m256i signed_x = _mm256_sign_epi8(broadcast_quad(x + row * k + column + quad * kQuad), quads);
          const __m256i pairs = _mm256_maddubs_epi16(magnitudes, signed_x);
          total[row][i] = _mm256_add_epi32(total[row][i], _mm256_madd_epi16(pairs, ones));
        }
      }
  for (int row = 0; row < kRows; ++row)
    for (int i = 0; i < kTogether; ++i)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + row * kHalf + i * 8), total[row][i]);
}

// The columns of the result that half a panel gives, of kRows rows from `row` on.
template <int kRows>
void multiply_rows(const LinearArguments& a, const QuantizedRows& x, int64_t row, int64_t half) {
  constexpr int kTogether = kRows == 1 ? 4 : kRows <= 3 ? 2 : 1;
  const Int8Panel panel = int8_panel(a.weight, a.k, half / 2);
  int32_t sums[kRows * kHalf];
  for (int strip = 0; strip < kStrips; strip += kTogether)
    multiply_strips<kRows, kTogether>(x.row(row), a.k, panel.tile(half % 2, 0, strip / 2) + strip % 2 * 32,
                                      sums + strip * 8);
  for (int i = 0; i < kRows; ++i)
    finish_sums(sums + i * kHalf, x.scales[row + i], panel.scales + half % 2 * kHalf, a, row + i, half);
}

void linear_int8(const void* words, const Context& context) {
  const LinearArguments& a = arguments<LinearArguments>(words);
  const int64_t num_rows = num_rows_of(a.extent, context.step);
  const QuantizedRows x = quantize_rows(a, num_rows, context.pool);
  share_row_groups(a, num_rows, a.k, context.pool,
                   [&](auto rows, int64_t row, int64_t half) { multiply_rows<rows>(a, x, row, half); });
}

}  // namespace

extern const Entry kInt8Avx2[] = {{"linear_int8", linear_int8}, {nullptr, nullptr}};

}  // namespace headrace
