// int8 by tile products, of weights that are stored so or unpacked to it.
#pragma once
#include "int8_tiles.h"
#include "tiles.h"

namespace headrace {
namespace {

// Rows whose sums over half a panel are complete.
template <int64_t kEpilogue, int64_t kOutKind>
struct Int8Results {
  const int32_t* sums = nullptr;    // [rows, 32]
  const float* x_scales = nullptr;  // of the rows
  const float* scales = nullptr;    // of the half panel
  Destination to;
  int64_t num_left = 0;

  void finish() {
    const auto scaled_from = [&](int64_t i) { return scaled(sums + i, *x_scales, scales + i); };
    finish_half(scaled_from, to.bias, kEpilogue, kOutKind, to.out);
    sums += kHalf, ++x_scales, to.out += to.row_bytes, --num_left;
  }
};

template <class Panels, int64_t kEpilogue, int64_t kOutKind>
struct Int8Tiles {
  using Sum = int32_t;
  using Results = Int8Results<kEpilogue, kOutKind>;
  const LinearArguments& a;
  const QuantizedRows& rows;
  const Panels panels;

  const uint8_t* address(int64_t half) const { return panels.address(half); }
  const uint8_t* load(int64_t half) const { return reinterpret_cast<const uint8_t*>(panels.load_half(half)); }

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

  Results results(const int32_t* sums, int64_t row, int64_t num_rows, int64_t half) const {
    return {sums, rows.scales + row, panels.scales(half), Destination(a, row, half), num_rows};
  }
};

template <class Panels>
void multiply_int8(const LinearArguments& a, const Context& context) {
  const int64_t num_rows = num_rows_of(a.extent, context.step);
  if (num_rows == 0) return;
  const QuantizedRows x = quantized_rows(num_rows, a.k);
  quantize_rows<int8_t>(a, num_rows, 0, x, context.pool);
  with_kinds(a, [&](auto epilogue, auto out_kind) {
    multiply_tiles(a, num_rows, a.k, context.pool,
                   [&] { return Int8Tiles<Panels, epilogue(), out_kind()>{a, x, Panels(a)}; });
  });
}

}  // namespace
}  // namespace headrace
