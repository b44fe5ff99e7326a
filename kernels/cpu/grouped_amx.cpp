// Linear layers over weights quantized in groups, on tiles: a product for each group, added up in float.
#include "amx.h"
#include "grouped512.h"
#include "grouped_generic.h"

namespace headrace {
namespace {

constexpr int kFewRows = 8;  // up to which unpacking the panels does not pay

// Has what `data` leads to in memory before the next instruction on tiles: GCC's intrinsics do not say that they read.
inline void see_memory(const void* data) { __asm__ volatile("" ::"r"(data) : "memory"); }

// This thread's tiles: 0 for products, 4 for x and 6 for weights. Only `num_rows` are computed, of one part.
template <class F>
void configure(int num_rows) {
  TileShapes shapes;
  for (int i = 0; i < 8; ++i)
    shapes.set(i, i < 6 ? num_rows : F::kPartQuads, i == 4 ? F::kPartColumns : kTileBytes);
  shapes.apply();
}

// Signed, less their zero points.
template <class F>
void unpack_tile(const uint8_t* panel, int64_t group, int tile, Part<F>* out) {
  const uint8_t* head = F::head(panel, group);
  const int64_t in_block = group % F::kBlockGroups;
  __m512i quads[kGroupQuads];
  load_quads<F>(F::quants(panel, group), tile, quads);
  __m512i zeros = _mm512_set1_epi8(F::kBits == 8 ? 0 : F::kZero);
  if constexpr (F::kHasZeros)
    zeros = _mm512_mullo_epi32(_mm512_cvtepu8_epi32(load_16_bytes(head + F::kHalves + tile * kColumnTile)),
                               _mm512_set1_epi32(0x01010101));
  for (int part = 0; part < F::kParts; ++part, ++out) {
    for (int i = 0; i < F::kPartQuads; ++i)
      _mm512_storeu_si512(out->quads[i], _mm512_sub_epi8(quads[part * F::kPartQuads + i], zeros));
    store_float(out->scales, load_scales<F>(head, in_block, part, tile));
    if constexpr (F::kHasMins) store_float(out->mins, load_mins<F>(head, in_block, tile));
  }
}

// products [16, 16] of one part of a tile.
template <class F>
inline void multiply_part(const Part<F>& weights, const int8_t* x, int32_t* products) {
  _tile_zero(0);
  _tile_loadd(4, x, kGroup);
  _tile_loadd(6, weights.quads, 64);
  _tile_dpbssd(0, 4, 6);
  _tile_stored(0, products, 64);
}

// On average, where the heads are of several groups.
template <class F>
constexpr int64_t kPartBytes = F::kBlock / F::kBlockGroups / kPanelTiles / F::kParts;  // packed

template <class F>
inline void add_products(const Part<F>& weights, const Activations& x, const int32_t* products,
                         __m512 (&sums)[kBlockRows]) {
  const __m512 scales = load_float(weights.scales);
#pragma GCC unroll 16
  for (int r = 0; r < kBlockRows; ++r)
    sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(products + r * kColumnTile)),
                              _mm512_mul_ps(scales, _mm512_set1_ps(x.scales[r])), sums[r]);
  if constexpr (F::kHasMins) {
    const __m512 mins = load_float(weights.mins);
#pragma GCC unroll 16
    for (int r = 0; r < kBlockRows; ++r) sums[r] = _mm512_fnmadd_ps(mins, _mm512_set1_ps(x.sums[r]), sums[r]);
  }
}

// sums [16, 16]. Meanwhile it prefetches as many bytes of packed weight from `ahead`, if that is not null.
template <class F>
void multiply_tile(const Part<F>* weights, int64_t num_groups, const Activations* x, const uint8_t* ahead,
                   float* sums) {
  // A part's products are read when those of some more are on their way: a store from a tile takes long.
  constexpr int kAhead = 2, kBuffers = 4;
  alignas(64) int32_t products[kBuffers][kBlockRows * kColumnTile];
  __m512 total[kBlockRows];
#pragma GCC unroll 16
  for (int r = 0; r < kBlockRows; ++r) total[r] = _mm512_setzero_ps();
  const int64_t num_parts = num_groups * F::kParts;
  for (int64_t i = 0; i < num_parts + kAhead; ++i) {
    if (ahead) prefetch(ahead + i * kPartBytes<F>, kPartBytes<F>);
    if (i < num_parts)
      multiply_part(weights[i], x[i / F::kParts].quants[0] + i % F::kParts * F::kPartColumns, products[i % kBuffers]);
    if (i >= kAhead) {
      const int64_t done = i - kAhead;
      add_products(weights[done], x[done / F::kParts], products[done % kBuffers], total);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kBlockRows; ++r) store_float(sums + r * kPanelRows, total[r]);
}

// A panel: left packed for few rows, else unpacked to [2 tiles][groups][parts]. The rows that a block lacks are
// computed from what its memory happens to hold, and end with it.
template <class F>
struct TilePanel {
  PackedPanel<F> packed;
  Part<F>* parts = nullptr;
  bool is_first_block = true;

  TilePanel(const Grouped& g, const uint8_t* panel, int64_t num_rows) : packed(g, panel, num_rows) {
    if (num_rows <= kFewRows) return;
    configure<F>(num_rows < kBlockRows ? static_cast<int>(num_rows) : kBlockRows);
    const int64_t num_bytes = kPanelTiles * g.num_groups * F::kParts * int64_t{sizeof(Part<F>)};
    parts = reinterpret_cast<Part<F>*>(scratch(Scratch::kPanels, num_bytes));
    Part<F>* out = parts;
    for (int tile = 0; tile < kPanelTiles; ++tile)
      for (int64_t group = 0; group < g.num_groups; ++group, out += F::kParts) unpack_tile<F>(panel, group, tile, out);
    see_memory(parts);
  }

  static void quantize(const uint16_t* x, Activations& y, int row) { quantize_group512<F>(x, y, row); }

  // sums [num_rows, 32] of up to 16 rows.
  void multiply(const Activations* x, int num_rows, float* sums) {
    if (num_rows <= kFewRows) return packed.multiply(x, num_rows, sums);
    const int64_t parts_of_tile = packed.num_groups * F::kParts;
    const uint8_t* following = packed.panel + F::panel_bytes(packed.num_groups);
    for (int tile = 0; tile < kPanelTiles; ++tile)
      multiply_tile(parts + tile * parts_of_tile, packed.num_groups, x,
                    is_first_block ? following + tile * parts_of_tile * kPartBytes<F> : nullptr,
                    sums + tile * kColumnTile);
    is_first_block = false;
  }
};

}  // namespace

extern const Entry* const kGroupedAmx = kLinearGrouped<TilePanel>;

}  // namespace headrace
