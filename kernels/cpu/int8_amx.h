// int8 by tile products: 16 rows of x with 16 rows of the weight, 64 columns of both at a time.
#pragma once
#include "amx.h"
#include "int8_tiles.h"

namespace headrace {
namespace {

constexpr int64_t kStep = kPanel * kInt8Block;  // bytes of a panel that are multiplied in one step: 4 tiles
constexpr int64_t kBlockRows = 2 * kInt8TileRows;
constexpr int64_t kFetchedAhead = 4 * kStep;

// What goes on beside the products, a little at each of their steps: the vector units finish the rows before, and the
// weights to come are fetched. The tiles alone would leave both idle.
class Background {
 public:
  template <class Panels>
  Background(const Int8Task& task, const LinearArguments& a, const QuantizedRows& x, const Panels& panels)
      : arguments_(a), x_(x), end_(panels.address(task.end_panel)), next_(panels.address(task.next_panel)) {
    const int64_t num_rows = task.end_row - task.first_row, num_steps = a.k / kInt8Block;
    const int64_t num_passes = num_rows <= kInt8TileRows ? 1 : 2 * divide_up(num_rows, kBlockRows);  // of each panel
    is_near_ = Panels::kAreReadInPlace && num_rows <= kInt8TileRows;
    const int64_t ahead = is_near_ ? kFetchedAhead : panels.num_bytes();
    cursor_ = std::min(panels.address(task.first_panel) + ahead, end_);
    lines_per_step_ = divide_up(panels.num_bytes() / 64, num_passes * num_steps);
    rows_per_step_ = divide_up(kInt8TileRows, num_steps);
  }

  // Those before must be finished.
  void finish(const int32_t* sums, const float* scales, int64_t row, int64_t num_rows, int64_t panel) {
    sums_ = sums, scales_ = scales, row_ = row, end_row_ = row + num_rows, panel_ = panel;
  }

  void step() {
    for (int64_t i = 0; i < lines_per_step_; ++i, cursor_ += 64) {
      if (cursor_ == end_) cursor_ = next_;
      if (is_near_) {
        _mm_prefetch(reinterpret_cast<const char*>(cursor_), _MM_HINT_T0);
      } else {
        _mm_prefetch(reinterpret_cast<const char*>(cursor_), _MM_HINT_T1);
      }
    }
    finish_rows(rows_per_step_);
  }

  void finish_rows(int64_t at_most) {
    for (; at_most > 0 && row_ < end_row_; --at_most, ++row_, sums_ += kPanel)
      finish_sums<kPanel>(sums_, x_.scales[row_], scales_, arguments_, row_, panel_);
  }

 private:
  const LinearArguments& arguments_;
  const QuantizedRows& x_;
  const uint8_t* cursor_;  // of what is fetched
  const uint8_t* const end_;
  const uint8_t* const next_;
  bool is_near_;  // then what is fetched is needed at once; else it is the next panel, too far off for the L1 cache
  int64_t lines_per_step_, rows_per_step_;
  const int32_t* sums_ = nullptr;
  const float* scales_ = nullptr;
  int64_t row_ = 0, end_row_ = 0, panel_ = 0;
};

// 16 rows of x by the 64 of a panel.
void multiply_tile(const int8_t* x, const int8_t* weight, int64_t k, int32_t* sums, Background& background) {
  zero_sums();
  for (int64_t i = 0; i < k; i += kInt8Block, x += kInt8Tile, weight += kStep) {
    background.step();
    _tile_loadd(4, x, kTileBytes);
    _tile_loadd(6, weight, kTileBytes);
    _tile_dpbssd(0, 4, 6);
    _tile_loadd(7, weight + kInt8Tile, kTileBytes);
    _tile_dpbssd(1, 4, 7);
    _tile_loadd(6, weight + 2 * kInt8Tile, kTileBytes);
    _tile_dpbssd(2, 4, 6);
    _tile_loadd(7, weight + 3 * kInt8Tile, kTileBytes);
    _tile_dpbssd(3, 4, 7);
  }
  store_sums(sums);
}

// 32 rows of x by half a panel: every tile that is loaded serves two products.
void multiply_half(const int8_t* x, const int8_t* weight, int64_t k, int32_t* sums, Background& background) {
  const int8_t* lower = x + k * kInt8TileRows;
  zero_sums();
  for (int64_t i = 0; i < k; i += kInt8Block, x += kInt8Tile, lower += kInt8Tile, weight += kStep) {
    _tile_loadd(4, x, kTileBytes);
    _tile_loadd(6, weight, kTileBytes);
    _tile_dpbssd(0, 4, 6);
    _tile_loadd(7, weight + kInt8Tile, kTileBytes);
    _tile_dpbssd(1, 4, 7);
    _tile_loadd(5, lower, kTileBytes);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
    background.step();
  }
  _tile_stored(0, sums, kPanelStride);
  _tile_stored(1, sums + 16, kPanelStride);
  _tile_stored(2, sums + kInt8TileRows * kPanel, kPanelStride);
  _tile_stored(3, sums + kInt8TileRows * kPanel + 16, kPanelStride);
}

template <class Panels>
void multiply(const Int8Task& task, const LinearArguments& a, const QuantizedRows& x) {
  alignas(64) int32_t sums[2][kBlockRows * kPanel];  // of this block, and of the one before
  const Panels panels(a);
  Background background(task, a, x, panels);
  configure_tiles(static_cast<int>(std::min<int64_t>(kTileRows, task.end_row - task.first_row)));
  int parity = 0;
  for (int64_t panel = task.first_panel; panel < task.end_panel; ++panel) {
    const Int8Panel loaded = panels.load(panel);
    const int8_t* weight = loaded.tiles;
    for (int64_t row = task.first_row; row < task.end_row; row += kBlockRows, parity ^= 1) {
      const int8_t* rows = reinterpret_cast<const int8_t*>(x.bytes) + row * a.k;
      const int64_t num_rows = std::min(kBlockRows, task.end_row - row);
      if (num_rows <= kInt8TileRows) {
        multiply_tile(rows, weight, a.k, sums[parity], background);
      } else {
        multiply_half(rows, weight, a.k, sums[parity], background);
        multiply_half(rows, weight + 2 * kInt8Tile, a.k, sums[parity] + kPanel / 2, background);
      }
      background.finish_rows(kBlockRows);
      background.finish(sums[parity], loaded.scales, row, num_rows, panel);
    }
  }
  background.finish_rows(kBlockRows);
}

}  // namespace
}  // namespace headrace
