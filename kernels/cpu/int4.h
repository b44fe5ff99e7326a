// What the int4 kernels of every instruction set have in common: how the weights lie in memory.
//
// A weight is scale[n] * w, where w = step * (quant - 8) + middle is an integer from -128 to 127: quants are of four
// bits, and 32 columns of a row share a step, of at most 17, and a middle. So a product with int8 rows of x is one sum
// of integers over all of k, exact in any order, and what is left to do in float is that of the int8 kernels.
//
// Few rows are multiplied by the quants as they are, group after group: the sum of w * x is
// step * (sum of (quant - 8) * x) + middle * sum of x. For many rows a panel is first unpacked to one of int8.
#pragma once
#include "int8.h"

namespace headrace {

constexpr int64_t kInt4Group = 32;  // columns with one step and one middle
constexpr int64_t kInt4Tile = 576;  // bytes, of 16 rows and 64 columns
constexpr int kInt4Middle = 8;      // the quant that stands for the middle

// As in epilogue.h, each source file has its own of what follows.
namespace {

// A panel is [2 halves][k / 64][2 tiles], then what belongs to each row, as in int8: the offset is 128 * the sum of w.
//
// A tile is [2 groups][4 vectors][16 rows][4 columns] of two quants, in the lower nibbles those of an even quad of
// columns, in the upper ones those of the quad after it; then [2 groups][16 rows] of a step and a middle, int8.
struct Int4Panel {
  const uint8_t* tiles;
  const float* scales;     // [64]
  const int32_t* offsets;  // [64]
  int64_t half_bytes;

  const uint8_t* tile(int64_t half, int64_t block, int64_t i) const {
    return tiles + half * half_bytes + (2 * block + i) * kInt4Tile;
  }
};

inline int64_t int4_half_bytes(int64_t k) { return k / kInt8Block * 2 * kInt4Tile; }
inline int64_t int4_panel_bytes(int64_t k) { return 2 * int4_half_bytes(k) + 8 * kPanel; }

inline Int4Panel int4_panel(const uint8_t* weight, int64_t k, int64_t i) {
  const uint8_t* panel = weight + i * int4_panel_bytes(k);
  const uint8_t* ends = panel + 2 * int4_half_bytes(k);
  return {panel, reinterpret_cast<const float*>(ends), reinterpret_cast<const int32_t*>(ends + kPanel * 4),
          int4_half_bytes(k)};
}

inline const uint8_t* int4_quants(const uint8_t* tile, int64_t group) { return tile + group * 4 * 64; }
inline const uint8_t* int4_steps(const uint8_t* tile, int64_t group) {
  return int4_quants(tile, 2) + group * 2 * kInt8TileRows;
}

}  // namespace
}  // namespace headrace
