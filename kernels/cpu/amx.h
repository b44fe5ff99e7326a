// The tile registers: eight, each of 16 rows of 64 bytes.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace headrace {

constexpr int kTileRows = 16;
constexpr int kTileBytes = 64;  // of a row: 32 bfloat16, 64 int8 or 16 of the accumulators' float or int32

// Of this thread, and zeroes its tiles. At the start of every task: torch's own kernels leave another configuration.
// Tiles 0 to 5 get `num_rows` rows: a product's rows do not meet, so those that do not exist need not be computed.
// Tiles 6 and 7, for the right-hand side, are always full.
inline void configure_tiles(int num_rows = kTileRows) {
  struct alignas(64) {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
  } config;
  for (int i = 0; i < 8; ++i) {
    config.bytes[i] = kTileBytes;
    config.rows[i] = static_cast<uint8_t>(i < 6 ? num_rows : kTileRows);
  }
  // GCC 12's own functions for this, and for loading a tile, do not say that they read memory: what was stored before
  // might come after, but for this barrier.
  __asm__ volatile("ldtilecfg %0" ::"m"(config) : "memory");
}

}  // namespace headrace
