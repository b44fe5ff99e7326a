// What the int8 kernels for AVX512 and AMX share: quantized rows in tiles, and where the weights' panels come from.
#pragma once
#include "int8.h"

namespace headrace {
namespace {

constexpr int64_t kRowsQuantizedTogether = 4;

// [rows / 16][k / 64][16 rows][64]: a tile is contiguous. Room for whole pairs of tiles; rows past the last hold
// anything.
struct QuantizedRows {
  uint8_t* bytes;
  float* scales;
};

// Where the panels of a weight come from: those of int8 are read where they lie.
struct StoredPanels {
  const LinearArguments& a;

  explicit StoredPanels(const LinearArguments& arguments) : a(arguments) {}

  // What has to come from memory for a half is from here up to where the next one's is.
  const uint8_t* address(int64_t half) const {
    return a.weight + half / 2 * int8_panel_bytes(a.k) + half % 2 * kHalf * a.k;
  }
  const int8_t* load_half(int64_t half) const { return reinterpret_cast<const int8_t*>(address(half)); }
  const float* scales(int64_t half) const { return int8_panel(a.weight, a.k, half / 2).scales + half % 2 * kHalf; }

  Int8Panel load(int64_t panel) const { return int8_panel(a.weight, a.k, panel); }
};

inline QuantizedRows quantized_rows(int64_t num_rows, int64_t k) {
  const int64_t num_padded = divide_up(num_rows, 2 * kInt8TileRows) * 2 * kInt8TileRows;
  uint8_t* memory = scratch(Scratch::kActivations, num_padded * (k + 4));
  return {memory, reinterpret_cast<float*>(memory + num_padded * k)};
}

template <class Byte>
inline void quantize_rows(const LinearArguments& a, int64_t num_rows, int shift, const QuantizedRows& x, Pool& pool) {
  pool.run(divide_up(num_rows, kRowsQuantizedTogether), [&](int64_t task) {
    const int64_t end = std::min(num_rows, (task + 1) * kRowsQuantizedTogether);
    for (int64_t i = task * kRowsQuantizedTogether; i < end; ++i) {
      uint8_t* q = x.bytes + i / kInt8TileRows * kInt8TileRows * a.k + i % kInt8TileRows * kInt8Block;
      x.scales[i] = quantize_row(a.x + i * a.x_stride, a.k, shift, reinterpret_cast<Byte*>(q), kInt8Tile);
    }
  });
}

}  // namespace
}  // namespace headrace
