// int4 on any machine: rows of a panel are unpacked, and multiplied as those of int8 are.
#include "int4.h"
#include "int8_generic.h"

namespace headrace {
namespace {

struct Int4Weight {
  static Int4Panel panel(const uint8_t* weight, int64_t k, int64_t i) { return int4_panel(weight, k, i); }

  static void unpack_quad(const Int4Panel& panel, int64_t row, int64_t quad, int* out) {
    constexpr int64_t kQuads = kInt8Block / kQuad;
    const int64_t in_half = row % kHalf, in_tile = in_half % kInt8TileRows, in_block = quad % kQuads;
    const uint8_t* tile = panel.tile(row / kHalf, quad / kQuads, in_half / kInt8TileRows);
    const uint8_t* both = tile + (in_block / 2 * kInt8TileRows + in_tile) * kQuad;
    const uint8_t* steps = int4_steps(tile, in_block * kQuad / kInt4Group) + in_tile * 2;
    const int middle = static_cast<int8_t>(steps[1]), shift = in_block % 2 * 4;
    for (int i = 0; i < kQuad; ++i) out[i] = ((both[i] >> shift & 15) - kInt4Middle) * steps[0] + middle;
  }

  static void unpack(const Int4Panel& panel, int64_t begin, int64_t num_columns, int16_t (*rows)[kColumnsTogether]) {
    for (int64_t row = 0; row < kPanel; ++row)
      for (int64_t column = 0; column < num_columns; column += kInt4Group) {
        const int64_t at = begin + column, in_half = row % kHalf;
        const uint8_t* tile = panel.tile(row / kHalf, at / kInt8Block, in_half / kInt8TileRows);
        unpack_group(tile, in_half % kInt8TileRows, at % kInt8Block / kInt4Group, rows[row] + column);
      }
  }

  // In loops that the compiler makes vectors of.
  static void unpack_group(const uint8_t* tile, int64_t row, int64_t group, int16_t* out) {
    constexpr int kVectors = 4;
    const uint8_t* steps = int4_steps(tile, group) + row * 2;
    const int step = steps[0], lowest = static_cast<int8_t>(steps[1]) - kInt4Middle * step;
    uint8_t both[kVectors * kQuad];
    for (int i = 0; i < kVectors; ++i)
      std::memcpy(both + i * kQuad, int4_quants(tile, group) + i * 64 + row * kQuad, kQuad);
    int16_t lower[kVectors * kQuad], upper[kVectors * kQuad];
    for (int i = 0; i < kVectors * kQuad; ++i) {
      lower[i] = static_cast<int16_t>((both[i] & 15) * step + lowest);
      upper[i] = static_cast<int16_t>((both[i] >> 4) * step + lowest);
    }
    for (int i = 0; i < kVectors; ++i) {
      std::memcpy(out + i * 2 * kQuad, lower + i * kQuad, kQuad * sizeof *out);
      std::memcpy(out + (i * 2 + 1) * kQuad, upper + i * kQuad, kQuad * sizeof *out);
    }
  }
};

}  // namespace

extern const Entry kInt4Portable[] = {{"linear_int4", linear_integers<Int4Weight>},
                                      {"embedding_int4", embedding_integers<Int4Weight>},
                                      {nullptr, nullptr}};

}  // namespace headrace
