// Linear layers on tiles, whatever the weights' format: 32 rows of x by half a panel, so that each tile that is loaded
// serves two products. Columns of x are added 64 bytes after 64 bytes, however many rows there are.
#pragma once
#include <algorithm>
#include <atomic>

#include "amx.h"
#include "linear.h"

namespace headrace {
namespace {

constexpr int64_t kTileSize = kTileRows * kTileBytes;
constexpr int64_t kStepSize = 2 * kTileSize;  // bytes of half a panel that one step multiplies
constexpr int64_t kGroupRows = 2 * kTileRows;
constexpr int64_t kLine = 64;  // bytes of a cache line
// Steps that all rows are multiplied by before the next: their part of the weights stays in the first-level cache. With
// a few more it still does, and the sums need not wait in memory for the next steps.
constexpr int64_t kChunkSteps = 16, kMaxWholeSteps = 18;
constexpr int64_t kFetchedAhead = kChunkSteps * kStepSize;
// Rows that pass by every panel before the next rows do: so many that they stay in the second-level cache.
constexpr int64_t kBlockBytes = 1 << 20;
constexpr int64_t kMaxBlockRows = 512;

// Where the tiles of x are: from `bytes` on, so many bytes from a row to the next of its tile, from the tile of a step
// to that of the next, and from 16 rows to the next 16.
struct TiledRows {
  const uint8_t* bytes;
  int64_t row, step, tile;
};

// A block of rows by a panel.
struct Unit {
  int64_t block, panel;
};

// The units that one thread takes, one after the other, and their weights, fetched from memory ahead of their use.
template <class Format>
class Stream {
 public:
  // Units are numbered block by block; `next` is the first that no thread has taken.
  Stream(const Format& format, int64_t num_panels, int64_t num_blocks, std::atomic<int64_t>& next)
      : format_(format), num_panels_(num_panels), num_units_(num_blocks * num_panels), next_(next) {}

  // False when none is left.
  bool take(Unit& unit) {
    if (!has_following_) claim();
    has_following_ = false;
    unit = {following_ / num_panels_, following_ % num_panels_};
    return following_ < num_units_;
  }

  // As far as the end of the unit that follows the one taken.
  void fetch(int64_t num_lines) {
    for (; num_lines > 0; --num_lines, data_ += kLine) {
      if (data_ >= end_ && (has_following_ || !claim())) return;
      _mm_prefetch(reinterpret_cast<const char*>(data_), _MM_HINT_T1);
    }
  }

 private:
  bool claim() {
    following_ = next_.fetch_add(1, std::memory_order_relaxed);
    has_following_ = true;
    const bool is_left = following_ < num_units_;
    data_ = format_.address(is_left ? following_ % num_panels_ : 0);
    end_ = is_left ? data_ + format_.panel_bytes() : data_;
    return is_left;
  }

  const Format& format_;
  const int64_t num_panels_, num_units_;
  std::atomic<int64_t>& next_;
  int64_t following_ = 0;
  bool has_following_ = false;
  const uint8_t* data_ = nullptr;  // fetched next
  const uint8_t* end_ = nullptr;   // of the panel it lies in
};

// Rows whose sums are complete: their epilogue is computed while the tiles multiply others.
template <class Format>
struct Pending {
  const typename Format::Sum* sums = nullptr;  // [rows, 32]
  int64_t row = 0, end_row = 0, half = 0;

  void finish(const Format& format, int64_t num_rows) {
    for (; num_rows > 0 && row < end_row; --num_rows, sums += kHalf) format.finish(sums, row++, half);
  }
};

// What one thread computes. A Format has, beside the weights' panels and x:
//   Sum                                  float or int32_t
//   address(panel), panel_bytes()        what of memory is fetched for a panel
//   load(panel)                          its tiles: [2 halves][steps][2][1 KiB]
//   x(), num_steps()                     TiledRows, and the steps in a row of it
//   multiply_pair, multiply_one          one step, added to the sums in tiles 0 to 3, or 0 and 1
//   finish(sums, row, half)              stores what a row and half a panel give
template <class Format>
class Multiplier {
 public:
  using Sum = typename Format::Sum;

  Multiplier(Format& format, Stream<Format>& stream) : format_(format), stream_(stream), x_(format.x()) {}
  ~Multiplier() { pending_.finish(format_, kGroupRows); }

  void multiply(int64_t first_row, int64_t end_row, int64_t panel) {
    const int64_t num_steps = format_.num_steps(), num_groups = divide_up(end_row - first_row, kGroupRows);
    const int64_t num_chunks = num_steps <= kMaxWholeSteps ? 1 : divide_up(num_steps, kChunkSteps);
    const int64_t chunk_steps = divide_up(num_steps, num_chunks);
    num_fetched_ = divide_up(format_.panel_bytes() / kLine, 2 * num_steps * num_groups);
    num_finished_ = divide_up(kGroupRows, chunk_steps);
    const uint8_t* weight = format_.load(panel);
    for (int half = 0; half < 2; ++half)
      for (int64_t step = 0; step < num_steps; step += chunk_steps) {
        const int64_t end_step = std::min(num_steps, step + chunk_steps);
        const uint8_t* steps = weight + (half * num_steps + step) * kStepSize;
        multiply_rows(first_row, end_row, step, end_step, steps, panel * 2 + half);
      }
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
      if (end_row - row > kTileRows) {
        multiply_pair(x, weight, end_step - step, step ? sums : nullptr, out);
      } else {
        multiply_one(x, weight, end_step - step, step ? sums : nullptr, out);
      }
      if (is_last) pending_ = {out, row, std::min(end_row, row + kGroupRows), half};
    }
  }

  // What else is done at each step: the tiles alone would leave the rest of the processor idle.
  void work_beside() {
    stream_.fetch(num_fetched_);
    pending_.finish(format_, num_finished_);
  }

  void multiply_pair(const uint8_t* x, const uint8_t* weight, int64_t num_steps, const Sum* sums, Sum* out) {
    sums ? load_pair(sums) : zero_sums();
    for (; num_steps > 0; --num_steps, x += x_.step, weight += kStepSize) {
      Format::multiply_pair(x, x + x_.tile, x_.row, weight);
      work_beside();
    }
    pending_.finish(format_, kGroupRows);
    store_pair(out);
  }

  void multiply_one(const uint8_t* x, const uint8_t* weight, int64_t num_steps, const Sum* sums, Sum* out) {
    sums ? load_one(sums) : zero_sums();
    for (; num_steps > 0; --num_steps, x += x_.step, weight += kStepSize) {
      Format::multiply_one(x, x_.row, weight);
      work_beside();
    }
    pending_.finish(format_, kGroupRows);
    store_one(out);
  }

  Format& format_;
  Stream<Format>& stream_;
  const TiledRows x_;
  Pending<Format> pending_;
  int64_t num_fetched_ = 0, num_finished_ = 0;  // lines and rows, at every step
  bool is_odd_ = false;
  alignas(kLine) Sum finished_[2][kGroupRows * kHalf];  // of those last multiplied, and of those before
  alignas(kLine) Sum sums_[kMaxBlockRows * kHalf];      // of the block's rows, between chunks
};

// All of x by all panels. `make_format` gives a thread its own; `row_bytes` are of x, in its tiles.
template <class Format, class MakeFormat>
void multiply_tiles(const LinearArguments& a, int64_t num_rows, int64_t row_bytes, Pool& pool,
                    const MakeFormat& make_format) {
  const int64_t max_rows = std::min<int64_t>(kMaxBlockRows, kBlockBytes / row_bytes / kGroupRows * kGroupRows);
  const int64_t block_rows = divide_up(divide_up(num_rows, divide_up(num_rows, max_rows)), kGroupRows) * kGroupRows;
  std::atomic<int64_t> next{0};
  pool.run(pool.num_threads(), [&](int64_t) {
    Format format = make_format();
    Stream<Format> stream(format, a.n / kPanel, divide_up(num_rows, block_rows), next);
    Unit unit;
    if (!stream.take(unit)) return;
    configure_tiles(static_cast<int>(std::min<int64_t>(num_rows, kTileRows)));
    stream.fetch(kFetchedAhead / kLine);
    Multiplier<Format> multiplier(format, stream);
    do {
      const int64_t first_row = unit.block * block_rows;
      multiplier.multiply(first_row, std::min(num_rows, first_row + block_rows), unit.panel);
    } while (stream.take(unit));
  });
}

}  // namespace
}  // namespace headrace
