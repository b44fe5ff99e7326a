// Linear layers on tiles, whatever the weights' format: 32 rows of x by half a panel, so that each tile that is loaded
// serves two products. Columns of x are added 64 bytes after 64 bytes, however many rows there are.
#pragma once
#include <algorithm>

#include "amx.h"
#include "tile_stream.h"

namespace headrace {
namespace {

constexpr int64_t kTileSize = kTileRows * kTileBytes;
constexpr int64_t kStepSize = 2 * kTileSize;  // bytes of half a panel that one step multiplies
constexpr int64_t kGroupRows = 2 * kTileRows;
// Steps that all rows are multiplied by before the next: their part of the weights stays in the first-level cache. With
// a few more it still does, and the sums need not wait in memory for the next steps.
constexpr int64_t kChunkSteps = 16, kMaxWholeSteps = 18;
constexpr int64_t kFetchedAhead = kChunkSteps * kStepSize;
// Rows that pass by all weights before the next rows do. So many that they stay in the second-level cache; of long rows
// some more, of which a part is read again from beyond, as that takes less than all weights once more.
constexpr int64_t kBlockBytes = 1 << 20, kMaxBlockBytes = 3 << 19;
constexpr int64_t kBlockRows = 256, kMaxBlockRows = 512;

// Where the tiles of x are: from `bytes` on, so many bytes from a row to the next of its tile, from the tile of a step
// to that of the next, and from 16 rows to the next 16.
struct TiledRows {
  const uint8_t* bytes;
  int64_t row, step, tile;
};

// What one thread computes. A Format has, beside the weights and x:
//   Sum                                  float or int32_t
//   address(half)                        where in memory half a panel begins, and the one before it ends
//   load(half)                           its tiles: [steps][2][1 KiB]
//   x(), num_steps()                     TiledRows, and the steps in a row of it
//   multiply_pair, multiply_one          one step, added to the sums in tiles 0 to 3, or 0 and 1
//   results(sums, row, num_rows, half)   Results of rows whose sums are complete: num_left, and finish(), which stores
//                                        those of the next row
template <class Format>
class Multiplier {
 public:
  using Sum = typename Format::Sum;
  using Results = typename Format::Results;

  Multiplier(Format& format, TileStream<Format>& stream) : format_(format), stream_(stream), x_(format.x()) {}
  ~Multiplier() { finish(unfinished_); }

  void multiply(int64_t first_row, int64_t end_row, int64_t half) {
    const int64_t num_steps = format_.num_steps(), num_groups = divide_up(end_row - first_row, kGroupRows);
    const int64_t num_chunks = num_steps <= kMaxWholeSteps ? 1 : divide_up(num_steps, kChunkSteps);
    const int64_t chunk_steps = divide_up(num_steps, num_chunks);
    const int64_t num_lines = divide_up(format_.address(half + 1) - format_.address(half), kLine);
    num_fetched_ = divide_up(num_lines, num_steps * num_groups);
    num_finished_ = divide_up(kGroupRows, chunk_steps);
    const uint8_t* weight = format_.load(half);
    for (int64_t step = 0; step < num_steps; step += chunk_steps)
      multiply_rows(first_row, end_row, step, std::min(num_steps, step + chunk_steps), weight + step * kStepSize, half);
  }

 private:
  // All rows by the steps of half a panel from `step` to `end_step`.
  void multiply_rows(int64_t first_row, int64_t end_row, int64_t step, int64_t end_step, const uint8_t* weight,
                     int64_t half) {
    const bool is_last = end_step == format_.num_steps();
    Sum* sums = sums_;
    for (int64_t row = first_row; row < end_row; row += kGroupRows, sums += kGroupRows * kHalf) {
      Sum* out = is_last ? finished_[is_odd_ = !is_odd_] : sums;
      const uint8_t* x = x_.bytes + row / kTileRows * x_.tile + step * x_.step;
      const Sum* before = step ? sums : nullptr;
      if (end_row - row > kTileRows) {
        multiply_group<true>(x, weight, end_step - step, before, out);
      } else {
        multiply_group<false>(x, weight, end_step - step, before, out);
      }
      if (is_last) unfinished_ = format_.results(out, row, std::min(end_row - row, kGroupRows), half);
    }
  }

  // Two tiles of rows, or one. The tiles alone would leave the rest of the processor idle: at each step it also fetches
  // and finishes. What that takes is copied here, for the compiler to keep it in registers; in memory, a seventh
  // of the time was lost.
  template <bool kIsPair>
  void multiply_group(const uint8_t* x, const uint8_t* weight, int64_t num_steps, const Sum* sums, Sum* out) {
    const int64_t row = x_.row, x_step = x_.step, x_tile = x_.tile, num_finished = num_finished_;
    Fetch fetch = stream_.next(num_steps, num_fetched_);
    Results unfinished = unfinished_;
    if (sums) {
      kIsPair ? load_pair(sums) : load_one(sums);
    } else {
      zero_sums();
    }
    for (const uint8_t* end = weight + num_steps * kStepSize; weight < end; weight += kStepSize, x += x_step) {
      kIsPair ? Format::multiply_pair(x, x + x_tile, row, weight) : Format::multiply_one(x, row, weight);
      fetch.step();
      for (int64_t i = num_finished; i > 0 && unfinished.num_left > 0; --i) unfinished.finish();
    }
    finish(unfinished);
    unfinished_.num_left = 0;
    kIsPair ? store_pair(out) : store_one(out);
  }

  static void finish(Results& results) {
    while (results.num_left > 0) results.finish();
  }

  Format& format_;
  TileStream<Format>& stream_;
  const TiledRows x_;
  Results unfinished_;                          // of the rows multiplied last
  int64_t num_fetched_ = 0, num_finished_ = 0;  // lines and rows, at every step
  bool is_odd_ = false;
  alignas(kLine) Sum finished_[2][kGroupRows * kHalf];  // of those last multiplied, and of those before
  alignas(kLine) Sum sums_[kMaxBlockRows * kHalf];      // of the block's rows, between chunks
};

// So many rows make a block, where a row of x has `row_bytes` in its tiles: blocks are alike, and of whole groups.
inline int64_t block_rows(int64_t num_rows, int64_t row_bytes) {
  const int64_t long_rows = std::min(kBlockRows, kMaxBlockBytes / row_bytes);
  const int64_t most = std::clamp(kBlockBytes / row_bytes, long_rows, kMaxBlockRows) / kGroupRows * kGroupRows;
  const int64_t num_blocks = divide_up(num_rows, std::max(most, kGroupRows));
  return divide_up(divide_up(num_rows, num_blocks), kGroupRows) * kGroupRows;
}

// All of x by all of the weights. `make_format` gives a thread its own.
template <class MakeFormat>
void multiply_tiles(const LinearArguments& a, int64_t num_rows, int64_t row_bytes, Pool& pool,
                    const MakeFormat& make_format) {
  const int64_t rows = block_rows(num_rows, row_bytes), num_halves = a.n / kHalf;
  Ranges ranges(divide_up(num_rows, rows) * num_halves, pool.num_threads());
  pool.run(pool.num_threads(), [&](int64_t) {
    auto format = make_format();
    TileStream<decltype(format)> stream(format, num_halves, ranges);
    if (!stream.has_next()) return;
    configure_tiles(static_cast<int>(std::min<int64_t>(num_rows, kTileRows)));
    stream.next(1, kFetchedAhead / kLine).step();
    Multiplier<decltype(format)> multiplier(format, stream);
    for (Unit unit; stream.take(unit);) {
      const int64_t first_row = unit.block * rows;
      multiplier.multiply(first_row, std::min(num_rows, first_row + rows), unit.half);
    }
  });
}

}  // namespace
}  // namespace headrace
