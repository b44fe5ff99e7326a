// int8 by tile products, of weights that are stored so or unpacked to it.
#pragma once
#include "int8_tiles.h"
#include "tiles.h"

namespace headrace {
namespace {

template <class Panels>
struct Int8Tiles {
  using Sum = int32_t;
  const LinearArguments& a;
  const QuantizedRows& rows;
  const Panels panels;

  const uint8_t* address(int64_t panel) const { return panels.address(panel); }
  int64_t panel_bytes() const { return panels.num_bytes(); }
  const uint8_t* load(int64_t panel) const { return reinterpret_cast<const uint8_t*>(panels.load(panel).tiles); }

  int64_t num_steps() const { return a.k / kInt8Block; }
  TiledRows x() const { return {rows.bytes, kInt8Block, kInt8Tile, kInt8TileRows * a.k}; }

  static void multiply_pair(const uint8_t* x, const uint8_t* lower, int64_t row, const uint8_t* weight) {
    _tile_stream_loadd(4, x, row);
    _tile_stream_loadd(5, lower, row);
    _tile_loadd(6, weight, kTileBytes);
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(2, 5, 6);
    _tile_loadd(7, weight + kTileSize, kTileBytes);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(3, 5, 7);
  }

  static void multiply_one(const uint8_t* x, int64_t row, const uint8_t* weight) {
    _tile_stream_loadd(4, x, row);
    _tile_loadd(6, weight, kTileBytes);
    _tile_dpbssd(0, 4, 6);
    _tile_loadd(7, weight + kTileSize, kTileBytes);
    _tile_dpbssd(1, 4, 7);
  }

  void finish(const int32_t* sums, int64_t row, int64_t half) const {
    finish_sums(sums, rows.scales[row], panels.scales(half), a, row, half);
  }
};

template <class Panels>
void multiply_int8(const LinearArguments& a, const Context& context) {
  const int64_t num_rows = num_rows_of(a.extent, context.step);
  if (num_rows == 0) return;
  const QuantizedRows x = quantized_rows(num_rows, a.k);
  quantize_rows<int8_t>(a, num_rows, 0, x, context.pool);
  multiply_tiles<Int8Tiles<Panels>>(a, num_rows, a.k, context.pool,
                                    [&] { return Int8Tiles<Panels>{a, x, Panels(a)}; });
}

}  // namespace
}  // namespace headrace
