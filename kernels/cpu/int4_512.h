// int4 in AVX512 registers: few rows of x by the quants as they are packed, and panels unpacked to int8 for many rows.
#pragma once
#include "int4.h"
#include "int8_tiles.h"
#include "vector512.h"

namespace headrace {
namespace {

constexpr int64_t kFewRows = 8;  // up to which unpacking panels does not pay, and for which the registers suffice

// Rows of x as packed quants meet them.
struct FewRows {
  int64_t num_rows, k;
  int8_t* quants;  // [rows][k]
  int32_t* sums;   // [rows][k / 32][2]: of a group's x, -8 times, from which products begin, and 65,536 times
  float* scales;   // [rows]
};

inline void quantize_row(const LinearArguments& a, int64_t row, const FewRows& x) {
  int8_t* q = x.quants + row * x.k;
  x.scales[row] = quantize_row(a.x + row * a.x_stride, x.k, 0, q, kInt8Block);
  int32_t* sums = x.sums + row * x.k / kInt4Group * 2;
  for (int64_t group = 0; group < x.k / kInt4Group; ++group, q += kInt4Group) {
    int32_t sum = 0;
    for (int64_t i = 0; i < kInt4Group; ++i) sum += q[i];
    sums[group * 2] = -kInt4Middle * sum;
    sums[group * 2 + 1] = sum * 65536;
  }
}

inline FewRows quantize_few_rows(const LinearArguments& a, int64_t num_rows, Pool& pool) {
  uint8_t* memory = scratch(Scratch::kActivations, num_rows * (a.k + a.k / 4 + 4));
  auto* sums = reinterpret_cast<int32_t*>(memory + num_rows * a.k);
  auto* scales = reinterpret_cast<float*>(sums + num_rows * a.k / 16);
  const FewRows x{num_rows, a.k, reinterpret_cast<int8_t*>(memory), sums, scales};
  pool.run(num_rows, [&](int64_t row) { quantize_row(a, row, x); });
  return x;
}

// Both in assembly because GCC 12 keeps the sums of the intrinsics in memory.
inline __m512i add_quad(__m512i sums, __m512i weights, const int8_t* x) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sums) : "v"(weights), "m"(*reinterpret_cast<const int32_t*>(x)));
  return sums;
}
inline __m512i add_pairs(__m512i sums, __m512i a, __m512i b) {
  asm("vpdpwssd %2, %1, %0" : "+v"(sums) : "v"(a), "v"(b));
  return sums;
}

inline __m512i lower_nibbles(__m512i x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
inline __m512i upper_nibbles(__m512i x) { return lower_nibbles(_mm512_srli_epi16(x, 4)); }
inline __m256i load_steps(const uint8_t* tile, int64_t group) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(int4_steps(tile, group)));
}

// One group of one tile.
struct Int4Group {
  __m512i quads[8];
  __m512i steps;  // int16 [16 rows][2]: a step, a middle

  Int4Group(const uint8_t* tile, int64_t group) : steps(_mm512_cvtepi8_epi16(load_steps(tile, group))) {
    for (int64_t i = 0; i < 4; ++i) {
      const __m512i both = _mm512_loadu_si512(int4_quants(tile, group) + i * 64);
      quads[2 * i] = lower_nibbles(both);
      quads[2 * i + 1] = upper_nibbles(both);
    }
  }

  // `total` with this group's part of a row. The products, at most 32 * 8 * 127, are int16, as is the sum of x, which
  // takes the place above them: the middle's.
  __m512i add_to(__m512i total, const int8_t* x, const int32_t* sums) const {
    constexpr int kAAndBOrC = 0xEA;
    __m512i products = _mm512_set1_epi32(sums[0]);
    for (int i = 0; i < 8; ++i) products = add_quad(products, quads[i], x + i * kQuad);
    products =
        _mm512_ternarylogic_epi32(products, _mm512_set1_epi32(0xFFFF), _mm512_set1_epi32(sums[1]), kAAndBOrC);
    return add_pairs(total, products, steps);
  }
};

// sums [kRows, 32] of half a panel.
template <int kRows>
void multiply_few(const uint8_t* tiles, const FewRows& x, int32_t* sums) {
  constexpr int64_t kFetchedAhead = 2048, kBlock = 2 * kInt4Tile;  // bytes
  __m512i total[kRows][2];
  for (auto& of_row : total) of_row[0] = of_row[1] = _mm512_setzero_si512();
  for (int64_t group = 0; group < x.k / kInt4Group; group += 2, tiles += kBlock) {
    for (int64_t i = 0; i < kBlock; i += 64)
      _mm_prefetch(reinterpret_cast<const char*>(tiles + kFetchedAhead + i), _MM_HINT_T0);
    for (int tile = 0; tile < 2; ++tile)
      for (int in_block = 0; in_block < 2; ++in_block) {
        const Int4Group weights(tiles + tile * kInt4Tile, in_block);
        const int64_t column = (group + in_block) * kInt4Group;
        for (int r = 0; r < kRows; ++r)
          total[r][tile] =
              weights.add_to(total[r][tile], x.quants + r * x.k + column, x.sums + (r * x.k + column) / kInt4Group * 2);
      }
  }
  for (int r = 0; r < kRows; ++r)
    for (int tile = 0; tile < 2; ++tile) _mm512_storeu_si512(sums + r * kHalf + tile * 16, total[r][tile]);
}

inline void multiply_few(const uint8_t* tiles, const FewRows& x, int32_t* sums) {
  switch (x.num_rows) {
    case 1: return multiply_few<1>(tiles, x, sums);
    case 2: return multiply_few<2>(tiles, x, sums);
    case 3: return multiply_few<3>(tiles, x, sums);
    case 4: return multiply_few<4>(tiles, x, sums);
    case 5: return multiply_few<5>(tiles, x, sums);
    case 6: return multiply_few<6>(tiles, x, sums);
    case 7: return multiply_few<7>(tiles, x, sums);
    default: return multiply_few<8>(tiles, x, sums);
  }
}

// The columns of the result that half a panel gives.
inline void multiply_half(const LinearArguments& a, const FewRows& x, int64_t half) {
  alignas(64) int32_t sums[kFewRows * kHalf];
  const Int4Panel panel = int4_panel(a.weight, a.k, half / 2);
  multiply_few(panel.tile(half % 2, 0, 0), x, sums);
  for (int64_t row = 0; row < x.num_rows; ++row)
    finish_sums(sums + row * kHalf, x.scales[row], panel.scales + half % 2 * kHalf, a, row, half);
}

inline void linear_few(const LinearArguments& a, const Context& context, int64_t num_rows) {
  constexpr int64_t kTasksPerThread = 8, kMaxHalves = 16;
  const FewRows x = quantize_few_rows(a, num_rows, context.pool);
  const int64_t num_halves = a.n / kHalf, shared = num_halves / (kTasksPerThread * context.pool.num_threads());
  const int64_t halves = std::clamp<int64_t>(shared, 1, kMaxHalves);
  context.pool.run(divide_up(num_halves, halves), [&](int64_t run) {
    for (int64_t half = run * halves; half < std::min(num_halves, (run + 1) * halves); ++half)
      multiply_half(a, x, half);
  });
}

// A group of a tile as int8 [8 quads][16 rows][4]. A step times two quants in 16 bits is two bytes side by side.
inline void unpack_group(const uint8_t* tile, int64_t group, int8_t* out) {
  const __m512i pairs = _mm512_cvtepu16_epi32(load_steps(tile, group));  // a step and a middle in each 32 bits
  const __m512i steps = _mm512_shuffle_epi8(pairs, _mm512_set4_epi32(0x800C800C, 0x80088008, 0x80048004, 0x80008000));
  const __m512i middles =
      _mm512_shuffle_epi8(pairs, _mm512_set4_epi32(0x0D0D0D0D, 0x09090909, 0x05050505, 0x01010101));
  const __m512i eight_steps = _mm512_mullo_epi16(steps, _mm512_set1_epi16(0x0808));
  const __m512i lowest = _mm512_sub_epi8(middles, eight_steps);
  for (int64_t i = 0; i < 4; ++i, out += 128) {
    const __m512i both = _mm512_loadu_si512(int4_quants(tile, group) + i * 64);
    const __m512i lower = _mm512_mullo_epi16(lower_nibbles(both), steps);
    const __m512i upper = _mm512_mullo_epi16(upper_nibbles(both), steps);
    _mm512_storeu_si512(out, _mm512_add_epi8(lower, lowest));
    _mm512_storeu_si512(out + 64, _mm512_add_epi8(upper, lowest));
  }
}

// Where the panels of a weight come from, as `StoredPanels`: from int4.
struct UnpackedPanels {
  const LinearArguments& a;
  int8_t* const tiles;  // of what was loaded last

  explicit UnpackedPanels(const LinearArguments& arguments)
      : a(arguments), tiles(reinterpret_cast<int8_t*>(scratch(Scratch::kPanels, kPanel * a.k))) {}

  const uint8_t* address(int64_t half) const {
    return a.weight + half / 2 * int4_panel_bytes(a.k) + half % 2 * int4_half_bytes(a.k);
  }
  const float* scales(int64_t half) const { return int4_panel(a.weight, a.k, half / 2).scales + half % 2 * kHalf; }

  const int8_t* load_half(int64_t half) const {
    unpack_half(half, tiles);
    __asm__ volatile("" ::"r"(tiles) : "memory");  // GCC's intrinsics for tiles do not say that they read
    return tiles;
  }

  Int8Panel load(int64_t panel) const {
    for (int64_t half = 0; half < 2; ++half) unpack_half(2 * panel + half, tiles + half * kHalf * a.k);
    const Int4Panel packed = int4_panel(a.weight, a.k, panel);
    return {tiles, packed.scales, packed.offsets, kHalf * a.k};
  }

 private:
  void unpack_half(int64_t half, int8_t* out) const {
    const Int4Panel panel = int4_panel(a.weight, a.k, half / 2);
    for (int64_t block = 0; block < a.k / kInt8Block; ++block)
      for (int64_t tile = 0; tile < 2; ++tile)
        for (int64_t group = 0; group < 2; ++group, out += kInt8Tile / 2)
          unpack_group(panel.tile(half % 2, block, tile), group, out);
  }
};

}  // namespace
}  // namespace headrace
