// Linear layers on tiles: 16 rows by the 64 columns of a panel. Columns of x are added 32 after 32, however many rows
// there are.
#include <algorithm>
#include <atomic>

#include "amx.h"
#include "epilogue512.h"

namespace headrace {
namespace {

constexpr int64_t kStepColumns = 32;               // bfloat16 in a row of a tile
constexpr int64_t kTile = kTileRows * kTileBytes;  // bytes
constexpr int64_t kStep = 4 * kTile;               // bytes of a panel in 32 columns
constexpr int64_t kLine = 64;                      // bytes of a cache line
// Columns that all rows are multiplied by before the next: with so many, the panel's part stays in the first-level
// cache, and the sums wait in memory meanwhile.
constexpr int64_t kChunkColumns = 8 * kStepColumns;
constexpr int64_t kFetchedAhead = kChunkColumns / kStepColumns * kStep;
// Lines fetched at each step of the later rows of a chunk; the first rows, which wait for memory anyway, fetch the
// rest. With more, what the tiles load from the caches waits behind them.
constexpr int64_t kLinesBeside = 6;
// Rows that pass by every panel before the next rows do: so many that they stay in the second-level cache.
constexpr int64_t kBlockBytes = 1 << 20;
constexpr int64_t kMaxBlockRows = 512;

// A block of rows by a panel.
struct Unit {
  int64_t block, panel;
};

// The units that one thread takes, one after the other, and their weights, fetched from memory ahead of their use.
class Stream {
 public:
  // Units are numbered block by block; `next` is the first that no thread has taken.
  Stream(const LinearArguments& a, int64_t num_blocks, std::atomic<int64_t>& next)
      : weight_(a.weight),
        panel_bytes_(kPanel * a.k * sizeof(uint16_t)),
        num_panels_(a.n / kPanel),
        num_units_(num_blocks * num_panels_),
        next_(next) {}

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
      if (data_ == end_ && (has_following_ || !claim())) return;
      _mm_prefetch(reinterpret_cast<const char*>(data_), _MM_HINT_T1);
    }
  }

 private:
  bool claim() {
    following_ = next_.fetch_add(1, std::memory_order_relaxed);
    has_following_ = true;
    const bool is_left = following_ < num_units_;
    data_ = weight_ + (is_left ? following_ % num_panels_ : 0) * panel_bytes_;
    end_ = is_left ? data_ + panel_bytes_ : data_;
    return is_left;
  }

  const uint8_t* const weight_;
  const int64_t panel_bytes_, num_panels_, num_units_;
  std::atomic<int64_t>& next_;
  int64_t following_ = 0;
  bool has_following_ = false;
  const uint8_t* data_ = nullptr;  // fetched next
  const uint8_t* end_ = nullptr;   // of the panel it lies in
};

// Rows whose sums are complete: their epilogue is computed while the tiles multiply others.
struct Pending {
  const float* sums = nullptr;
  int64_t row = 0, end_row = 0, panel = 0;

  void finish(const LinearArguments& a, int64_t num_rows) {
    for (; num_rows > 0 && row < end_row; --num_rows, sums += kPanel) finish_row(a, sums, row++, panel);
  }
};

// What one thread computes, in units of up to kMaxBlockRows rows.
class Multiplier {
 public:
  Multiplier(const LinearArguments& a, Stream& stream) : a_(a), stream_(stream) {}
  ~Multiplier() { pending_.finish(a_, kTileRows); }

  void multiply(int64_t first_row, int64_t end_row, int64_t panel) {
    const uint8_t* weight = a_.weight + panel * kPanel * a_.k * sizeof(uint16_t);
    const int64_t num_others = divide_up(end_row - first_row, kTileRows) - 1;  // tiles of rows after the first
    const int64_t beside = std::min(kLinesBeside, divide_up(kStep / kLine, num_others + 1));
    for (int64_t k = 0; k < a_.k; k += kChunkColumns, weight += kChunkColumns / kStepColumns * kStep) {
      const int64_t end_k = std::min(a_.k, k + kChunkColumns);
      float* sums = sums_;
      for (int64_t row = first_row; row < end_row; row += kTileRows, sums += kTileRows * kPanel) {
        num_fetched_ = row == first_row ? std::max<int64_t>(0, kStep / kLine - num_others * beside) : beside;
        add_chunk(row, k, end_k, weight, sums);
        if (end_k == a_.k) pending_ = {sums, row, std::min(end_row, row + kTileRows), panel};
      }
    }
  }

 private:
  // Adds columns [k, end_k) of x to the sums of a tile of rows.
  void add_chunk(int64_t row, int64_t k, int64_t end_k, const uint8_t* weight, float* sums) {
    if (k == 0) {
      zero_sums();
    } else {
      load_sums(sums);
    }
    for (; k < end_k; k += kStepColumns, weight += kStep) {
      add_step(a_.x + row * a_.x_stride + k, weight);
      stream_.fetch(num_fetched_);
      pending_.finish(a_, 2);
    }
    pending_.finish(a_, kTileRows);
    store_sums(sums);
  }

  void add_step(const uint16_t* x, const uint8_t* weight) {
    _tile_loadd(4, x, a_.x_stride * sizeof(uint16_t));
    _tile_loadd(6, weight, kTileBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, weight + kTile, kTileBytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(6, weight + 2 * kTile, kTileBytes);
    _tile_dpbf16ps(2, 4, 6);
    _tile_loadd(7, weight + 3 * kTile, kTileBytes);
    _tile_dpbf16ps(3, 4, 7);
  }

  const LinearArguments& a_;
  Stream& stream_;
  Pending pending_;
  int64_t num_fetched_ = 0;                            // lines, at every step
  alignas(kLine) float sums_[kMaxBlockRows * kPanel];  // of the block's rows
};

void linear_bf16(const void* words, const Context& context) {
  const auto& a = arguments<LinearArguments>(words);
  const int64_t num_rows = num_rows_of(a.extent, context.step);
  if (num_rows == 0) return;
  const int64_t max_rows = std::min<int64_t>(kMaxBlockRows, kBlockBytes / sizeof(uint16_t) / a.k);
  const int64_t block_rows = divide_up(divide_up(num_rows, divide_up(num_rows, max_rows)), kTileRows) * kTileRows;
  std::atomic<int64_t> next{0};
  context.pool.run(context.pool.num_threads(), [&](int64_t) {
    Stream stream(a, divide_up(num_rows, block_rows), next);
    Unit unit;
    if (!stream.take(unit)) return;
    configure_tiles(static_cast<int>(std::min<int64_t>(num_rows, kTileRows)));
    stream.fetch(kFetchedAhead / kLine);
    Multiplier multiplier(a, stream);
    do {
      const int64_t first_row = unit.block * block_rows;
      multiplier.multiply(first_row, std::min(num_rows, first_row + block_rows), unit.panel);
    } while (stream.take(unit));
  });
}

}  // namespace

extern const Entry kLinearAmx[] = {{"linear_bf16", linear_bf16}, {nullptr, nullptr}};

}  // namespace headrace
