// The tile registers: eight, each of 16 rows of 64 bytes.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace headrace {

constexpr int kTileRows = 16;
constexpr int kTileBytes = 64;  // of a row: 32 bfloat16, 64 int8 or 16 of the accumulators' float or int32

// The shapes of this thread's tiles.
struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int64_t num_rows, int64_t num_bytes) {
    rows[tile] = static_cast<uint8_t>(num_rows);
    bytes[tile] = static_cast<uint16_t>(num_bytes);
  }

  // Zeroes the tiles. At the start of every task: torch's own kernels leave other shapes. GCC 12's own functions for
  // this, and for loading a tile, do not say that they read memory: what was stored before might come after, but for
  // this barrier.
  void apply() const { __asm__ volatile("ldtilecfg %0" ::"m"(*this) : "memory"); }
};

// Tiles 0 to 5 get `num_rows` rows: a product's rows do not meet, so those that do not exist need not be computed.
// Tiles 6 and 7, for the right-hand side, are always full.
inline void configure_tiles(int num_rows = kTileRows) {
  TileShapes shapes;
  for (int i = 0; i < 8; ++i) shapes.set(i, i < 6 ? num_rows : kTileRows, kTileBytes);
  shapes.apply();
}

// Tiles 0 to 3 are the sums of 32 rows by the 32 columns of half a panel, float or int32, [32, 32] in memory: 0 and 1
// of the first 16 rows.
constexpr int64_t kSumsStride = 2 * kTileBytes;
constexpr int64_t kLowerSums = kTileRows * kSumsStride;

inline void zero_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

inline void load_one(const void* sums) {
  const auto* from = static_cast<const uint8_t*>(sums);
  _tile_loadd(0, from, kSumsStride);
  _tile_loadd(1, from + kTileBytes, kSumsStride);
}

inline void load_pair(const void* sums) {
  const auto* lower = static_cast<const uint8_t*>(sums) + kLowerSums;
  load_one(sums);
  _tile_loadd(2, lower, kSumsStride);
  _tile_loadd(3, lower + kTileBytes, kSumsStride);
}

inline void store_one(void* sums) {
  auto* to = static_cast<uint8_t*>(sums);
  _tile_stored(0, to, kSumsStride);
  _tile_stored(1, to + kTileBytes, kSumsStride);
}

inline void store_pair(void* sums) {
  auto* lower = static_cast<uint8_t*>(sums) + kLowerSums;
  store_one(sums);
  _tile_stored(2, lower, kSumsStride);
  _tile_stored(3, lower + kTileBytes, kSumsStride);
}

}  // namespace headrace
