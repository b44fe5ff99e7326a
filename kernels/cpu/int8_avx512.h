// int8 by products of four bytes: of x + 128, which has no sign, as the instruction wants it. What that adds to a sum
// is known from the weights alone.
#pragma once
#include <immintrin.h>

#include "int8_tiles.h"

namespace headrace {
namespace {

constexpr int kShift = 128;
constexpr int kRows = 4;  // of x, multiplied with what is loaded of the weight
constexpr int64_t kPrefetchDistance = 4096;

// The compiler, given the intrinsic, keeps the sums in memory.
inline void add_products(__m512i& sums, __m512i x, __m512i weight) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(x), "v"(weight));
}

// Four rows of x by the 64 of a panel, into [4, 64].
inline void multiply_4(const uint8_t* x, const Int8Panel& weight, int64_t k, int32_t* out) {
  __m512i sums[kRows][4];
  for (int row = 0; row < kRows; ++row)
    for (int i = 0; i < 4; ++i) sums[row][i] = _mm512_setzero_si512();
  const int8_t* tiles = weight.tiles;
  for (int64_t block = 0; block < k; block += kInt8Block, x += kInt8Tile, tiles += 4 * kInt8Tile) {
    for (int64_t quad = 0; quad < kInt8Block; quad += kQuad) {
      __m512i columns[4];
      for (int i = 0; i < 4; ++i) {
        const int8_t* at = tiles + i * kInt8Tile + quad * kInt8TileRows;
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

void multiply_panel(const Int8Task& task, const LinearArguments& a, const QuantizedRows& x, int64_t panel,
                    const Int8Panel& weight) {
  alignas(64) int32_t sums[kRows * kPanel];
  for (int64_t row = task.first_row; row < task.end_row; row += kRows) {
    const int64_t in_tile = row % kInt8TileRows;
    multiply_4(x.bytes + (row - in_tile) * a.k + in_tile * kInt8Block, weight, a.k, sums);
    for (int64_t i = 0; i < kRows && row + i < task.end_row; ++i)
      finish_sums<kPanel>(sums + i * kPanel, x.scales[row + i], weight.scales, a, row + i, panel);
  }
}

template <class Panels>
void multiply(const Int8Task& task, const LinearArguments& a, const QuantizedRows& x) {
  const Panels panels(a);
  for (int64_t panel = task.first_panel; panel < task.end_panel; ++panel)
    multiply_panel(task, a, x, panel, panels.load(panel));
}

}  // namespace
}  // namespace headrace
