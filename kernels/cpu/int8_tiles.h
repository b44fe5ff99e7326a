// What the int8 kernels for AVX512 and AMX share: quantized rows in tiles, and how the threads divide the work.
#pragma once
#include "int8.h"

namespace headrace {
namespace {

// What is multiplied together stays in the L2 cache: these rows of x, and one panel after the other.
constexpr int64_t kRowsTogether = 256;
constexpr int64_t kRowsQuantizedTogether = 4;
constexpr int64_t kTasksPerThread = 8;

// [rows / 16][k / 64][16 rows][64]: a tile is contiguous. Room for whole pairs of tiles; rows past the last hold
// anything.
struct QuantizedRows {
  uint8_t* bytes;
  float* scales;
};

// A run of panels by a range of rows. `next_panel` begins the run that this thread is likely to get after it.
struct Int8Task {
  int64_t first_row, end_row, first_panel, end_panel, next_panel;
};

// Where the panels of a weight come from: those of int8 are read where they lie.
struct StoredPanels {
  static constexpr bool kAreReadInPlace = true;
  const LinearArguments& a;

  explicit StoredPanels(const LinearArguments& arguments) : a(arguments) {}

  int64_t num_bytes() const { return int8_panel_bytes(a.k); }
  const uint8_t* address(int64_t i) const { return a.weight + i * num_bytes(); }
  Int8Panel load(int64_t i) const { return int8_panel(a.weight, a.k, i); }
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

// multiply(task, arguments, x) for all rows and panels, where x is quantized and `shift` was added to it.
template <class Byte, class Multiply>
inline void share_int8(const LinearArguments& a, const Context& context, int shift, const Multiply& multiply) {
  const int64_t num_rows = num_rows_of(a.extent, context.step), num_panels = a.n / kPanel;
  const QuantizedRows x = quantized_rows(num_rows, a.k);
  quantize_rows<Byte>(a, num_rows, shift, x, context.pool);
  const int64_t num_threads = context.pool.num_threads();
  const int64_t panels = divide_up(num_panels, kTasksPerThread * num_threads);
  const int64_t num_runs = divide_up(num_panels, panels);
  context.pool.run(divide_up(num_rows, kRowsTogether) * num_runs, [&](int64_t i) {
    const int64_t row = i / num_runs * kRowsTogether, run = i % num_runs;
    multiply(Int8Task{row, std::min(num_rows, row + kRowsTogether), run * panels,
                      std::min(num_panels, (run + 1) * panels), (run + num_threads) % num_runs * panels},
             a, x);
  });
}

}  // namespace
}  // namespace headrace
