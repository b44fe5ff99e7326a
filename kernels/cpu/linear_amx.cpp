// bfloat16 by tile products.
#include "bfloat16_panels.h"
#include "epilogue512.h"
#include "tiles.h"

namespace headrace {
namespace {

// Rows whose sums over half a panel are complete.
template <int64_t kEpilogue, int64_t kOutKind>
struct Bfloat16Results {
  const float* sums = nullptr;  // [rows, 32]
  bool is_past_caches = false;
  Destination to;
  int64_t num_left = 0;

  void finish() {
    finish_half(sums, to.bias, kEpilogue, kOutKind, is_past_caches, to.out);
    sums += kHalf, to.out += to.row_bytes, --num_left;
  }
};

template <int64_t kEpilogue, int64_t kOutKind>
struct Bfloat16Tiles {
  using Sum = float;
  using Results = Bfloat16Results<kEpilogue, kOutKind>;
  const LinearArguments& a;

  const uint8_t* address(int64_t half) const { return a.weight + half * kHalf * a.k * int64_t{sizeof(uint16_t)}; }
  const uint8_t* load(int64_t half) const { return address(half); }

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

  Results results(const float* sums, int64_t row, int64_t num_rows, int64_t half) const {
    return {sums, a.n >= kPastCachesColumns, Destination(a, row, half), num_rows};
  }
};

void linear_bf16(const void* words, const Context& context) {
  const auto& a = arguments<LinearArguments>(words);
  const int64_t num_rows = num_rows_of(a.extent, context.step);
  if (num_rows == 0) return;
  with_kinds(a, [&](auto epilogue, auto out_kind) {
    multiply_tiles(a, num_rows, a.k * sizeof(uint16_t), context.pool,
                   [&] { return Bfloat16Tiles<epilogue(), out_kind()>{a}; });
  });
}

}  // namespace

extern const Entry kLinearAmx[] = {{"linear_bf16", linear_bf16}, {nullptr, nullptr}};

}  // namespace headrace
