// bfloat16 by tile products.
#include "bfloat16_panels.h"
#include "epilogue512.h"
#include "tiles.h"

namespace headrace {
namespace {

struct Bfloat16Tiles {
  using Sum = float;
  const LinearArguments& a;

  const uint8_t* address(int64_t panel) const { return a.weight + panel * panel_bytes(); }
  int64_t panel_bytes() const { return kPanel * a.k * int64_t{sizeof(uint16_t)}; }
  const uint8_t* load(int64_t panel) const { return address(panel); }

  int64_t num_steps() const { return a.k / kStepColumns; }
  TiledRows x() const {
    const int64_t row = a.x_stride * int64_t{sizeof(uint16_t)};
    return {reinterpret_cast<const uint8_t*>(a.x), row, kTileBytes, kTileRows * row};
  }

  static void multiply_pair(const uint8_t* x, const uint8_t* lower, int64_t row, const uint8_t* weight) {
    _tile_stream_loadd(4, x, row);
    _tile_stream_loadd(5, lower, row);
    _tile_loadd(6, weight, kTileBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(2, 5, 6);
    _tile_loadd(7, weight + kTileSize, kTileBytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(3, 5, 7);
  }

  static void multiply_one(const uint8_t* x, int64_t row, const uint8_t* weight) {
    _tile_stream_loadd(4, x, row);
    _tile_loadd(6, weight, kTileBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, weight + kTileSize, kTileBytes);
    _tile_dpbf16ps(1, 4, 7);
  }

  void finish(const float* sums, int64_t row, int64_t half) const { finish_half(a, sums, row, half); }
};

void linear_bf16(const void* words, const Context& context) {
  const auto& a = arguments<LinearArguments>(words);
  const int64_t num_rows = num_rows_of(a.extent, context.step);
  if (num_rows == 0) return;
  multiply_tiles<Bfloat16Tiles>(a, num_rows, a.k * sizeof(uint16_t), context.pool, [&] { return Bfloat16Tiles{a}; });
}

}  // namespace

extern const Entry kLinearAmx[] = {{"linear_bf16", linear_bf16}, {nullptr, nullptr}};

}  // namespace headrace
