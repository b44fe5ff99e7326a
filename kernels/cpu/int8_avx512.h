// int8 by products of four bytes: of x + 128, which has no sign, as the instruction wants it. What that adds to a sum
// is known from the weights alone.
#pragma once
#include <immintrin.h>

#include "int8_tiles.h"

namespace headrace {
namespace {

constexpr int kShift = 128;
constexpr int kRows = 4;  // of x, multiplied with what is loaded of the weight
constexpr int64_t kPrefetchDistance = 2048;     // in each half of a panel
constexpr int64_t kRowsTogether = 256;           // that stay in the second-level cache, with a panel

// The compiler, given the intrinsic, keeps the sums in memory.
inline void add_products(__m512i& sums, __m512i x, __m512i weight) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(x), "v"(weight));
}

// Four rows of x by the 64 of a panel, into [4, 64].
inline void multiply_4(const uint8_t* x, const Int8Panel& weight, int64_t k, int32_t* out) {
  __m512i sums[kRows][4];
  for (int row = 0; row < kRows; ++row)
    for (int i = 0; i < 4; ++i) sums[row][i] = _mm512_setzero_si512();
  for (int64_t block = 0; block < k; block += kInt8Block, x += kInt8Tile) {
    for (int64_t quad = 0; quad < kInt8Block; quad += kQuad) {
      __m512i columns[4];
      for (int i = 0; i < 4; ++i) {
        const int8_t* at = weight.tile(i / 2, block / kInt8Block, i % 2) + quad * kInt8TileRows;
        columns[i] = _mm512_load_si512(at);
        _mm_prefetch(reinterpret_cast<const char*>(at + kPrefetchDistance), _MM_HINT_T0);
      }
      for (int row = 0; row < kRows; ++row) {
        int32_t four;
        std::memcpy(&four, x + row * kInt8Block + quad, sizeof four);
        for (int i = 0; i < 4; ++i) add_products(sums[row][i], _mm512_set1_epi32(four), columns[i]);
      }
    }
  }
  for (int row = 0; row < kRows; ++row)
    for (int i = 0; i < 4; ++i)
      _mm512_storeu_si512(out + row * kPanel + i * 16,
                          _mm512_sub_epi32(sums[row][i], _mm512_loadu_si512(weight.offsets + i * 16)));
}

// The columns of the result that a panel gives, of the rows of x from `begin` to `end`.
void multiply_panel(const LinearArguments& a, const QuantizedRows& x, int64_t begin, int64_t end, int64_t panel,
                    const Int8Panel& weight) {
  alignas(64) int32_t sums[kRows * kPanel];
  for (int64_t row = begin; row < end; row += kRows) {
    const int64_t in_tile = row % kInt8TileRows;
    multiply_4(x.bytes + (row - in_tile) * a.k + in_tile * kInt8Block, weight, a.k, sums);
    for (int64_t i = 0; i < kRows && row + i < end; ++i)
      finish_panel(sums + i * kPanel, x.scales[row + i], weight.scales, a, row + i, panel);
  }
}

template <class Panels>
void multiply_int8(const LinearArguments& a, const Context& context) {
  const int64_t num_rows = num_rows_of(a.extent, context.step), num_panels = a.n / kPanel;
  const QuantizedRows x = quantized_rows(num_rows, a.k);
  quantize_rows<uint8_t>(a, num_rows, kShift, x, context.pool);
  context.pool.run(divide_up(num_rows, kRowsTogether) * num_panels, [&](int64_t task) {
    const int64_t begin = task / num_panels * kRowsTogether, panel = task % num_panels;
    multiply_panel(a, x, begin, std::min(num_rows, begin + kRowsTogether), panel, Panels(a).load(panel));
  });
}

}  // namespace
}  // namespace headrace
