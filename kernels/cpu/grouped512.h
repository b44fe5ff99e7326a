// Panels of quants and scales in AVX512 registers, and products with few rows of x straight from them.
#pragma once
#include "grouped.h"
#include "vector512.h"

namespace headrace {
namespace {

inline __m512i load_bytes(const uint8_t* x) { return _mm512_loadu_si512(x); }

// The quads of one tile, a byte for each quant: as they are packed, those of eight bits signed, the others not.
template <class F>
inline void load_quads(const uint8_t* quants, int tile, __m512i (&quads)[kGroupQuads]) {
  constexpr int kTileQuants = kColumnTile * kGroup;
  if constexpr (F::kBits == 8) {
    for (int i = 0; i < kGroupQuads; ++i) quads[i] = load_bytes(quants + tile * kTileQuants + i * 64);
    return;
  }
  const __m512i nibble = _mm512_set1_epi8(15);
  for (int i = 0; i < kGroupQuads / 2; ++i) {
    const __m512i both = load_bytes(quants + tile * kTileQuants / 2 + i * 64);
    quads[2 * i] = _mm512_and_si512(both, nibble);
    quads[2 * i + 1] = _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble);
  }
  for (int plane = 0; plane < F::kBits - 4; ++plane) {
    const uint8_t* bits = quants + F::kPlanes + plane * F::kPlane + tile * kTileQuants / 8;
    const __m512i value = _mm512_set1_epi8(static_cast<char>(16 << plane));
    for (int i = 0; i < kGroupQuads; ++i) {
      uint64_t mask;
      std::memcpy(&mask, bits + i * 8, sizeof mask);
      quads[i] = _mm512_mask_add_epi8(quads[i], mask, quads[i], value);
    }
  }
}

inline __m128i load_16_bytes(const uint8_t* x) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(x)); }
inline __m512 load_halves(const uint8_t* x) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
}
inline __m512 load_unsigned(const uint8_t* x) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load_16_bytes(x))); }
inline __m512 load_signed(const uint8_t* x) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_16_bytes(x))); }

inline void prefetch(const uint8_t* data, int64_t num_bytes) {
  for (int64_t i = 0; i < num_bytes; i += 64) _mm_prefetch(reinterpret_cast<const char*>(data + i), _MM_HINT_T0);
}

// Of the rows of one tile, `group` counted within its block.
template <class F>
inline __m512 load_scales(const uint8_t* head, int64_t group, int part, int tile) {
  const __m512 halves = load_halves(head + tile * kColumnTile * 2);
  if constexpr (!F::kIsSuper) return halves;
  const uint8_t* factors = head + F::kFactors + (group * F::kParts + part) * kPanelRows + tile * kColumnTile;
  return _mm512_mul_ps(halves, F::kHasMins ? load_unsigned(factors) : load_signed(factors));
}

template <class F>
inline __m512 load_mins(const uint8_t* head, int64_t group, int tile) {
  const __m512 halves = load_halves(head + F::kHalves + tile * kColumnTile * 2);
  return _mm512_mul_ps(halves, load_unsigned(head + F::kMinFactors + group * kPanelRows + tile * kColumnTile));
}

// In assembly because GCC 12 keeps the sums of the intrinsic in memory.
inline __m512i add_quad(__m512i sums, __m512i weights, const int8_t* x) {
  __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sums) : "v"(weights), "m"(*reinterpret_cast<const int32_t*>(x)));
  return sums;
}

// One group of one tile.
template <class F>
struct GroupTile {
  __m512i quads[kGroupQuads];  // unsigned
  __m512 scales[F::kParts];
  __m512 others;  // the zero points or minima

  GroupTile(const uint8_t* panel, int64_t group, int tile) {
    const uint8_t* head = F::head(panel, group);
    const int64_t in_block = group % F::kBlockGroups;
    load_quads<F>(F::quants(panel, group), tile, quads);
    if constexpr (F::kBits == 8)
      for (__m512i& quad : quads) quad = _mm512_xor_si512(quad, _mm512_set1_epi8(-128));
    for (int part = 0; part < F::kParts; ++part) scales[part] = load_scales<F>(head, in_block, part, tile);
    if constexpr (F::kHasZeros) others = load_unsigned(head + F::kHalves + tile * kColumnTile);
    if constexpr (F::kHasMins) others = load_mins<F>(head, in_block, tile);
  }

  // `sums` with this group's part of a row.
  __m512 add_to(__m512 sums, const Activations& x, int row) const {
    for (int part = 0; part < F::kParts; ++part) {
      __m512i products = _mm512_set1_epi32(x.offsets[part][row]);
      for (int i = 0; i < F::kPartQuads; ++i) {
        const int quad = part * F::kPartQuads + i;
        products = add_quad(products, quads[quad], x.quants[row] + quad * 4);
      }
      __m512 total = _mm512_cvtepi32_ps(products);
      if constexpr (F::kHasZeros) total = _mm512_fnmadd_ps(others, _mm512_set1_ps(x.sums[row]), total);  // exact
      sums = _mm512_fmadd_ps(total, _mm512_mul_ps(scales[part], _mm512_set1_ps(x.scales[row])), sums);
    }
    if constexpr (F::kHasMins) sums = _mm512_fnmadd_ps(others, _mm512_set1_ps(x.sums[row]), sums);
    return sums;
  }
};

// sums [kRows, 32] of a panel, of the rows of a block from `row` on.
template <class F, int kRows>
void multiply_packed(const uint8_t* panel, int64_t num_groups, const Activations* x, int row, float* sums) {
  constexpr int64_t kPrefetchedAhead = 2048;  // bytes
  __m512 total[kRows][kPanelTiles];
  for (auto& of_row : total)
    for (__m512& tile : of_row) tile = _mm512_setzero_ps();
  for (int64_t group = 0; group < num_groups; ++group) {
    prefetch(F::quants(panel, group) + kPrefetchedAhead, F::kBlock / F::kBlockGroups);
    for (int tile = 0; tile < kPanelTiles; ++tile) {
      const GroupTile<F> weights(panel, group, tile);
      for (int r = 0; r < kRows; ++r) total[r][tile] = weights.add_to(total[r][tile], x[group], row + r);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int tile = 0; tile < kPanelTiles; ++tile)
      store_float(sums + (row + r) * kPanelRows + tile * kColumnTile, total[r][tile]);
}

constexpr int kMaxPackedRows = 8;  // for which the registers suffice

template <class F>
void multiply_packed(const uint8_t* panel, int64_t num_groups, const Activations* x, int row, int num_rows,
                     float* sums) {
  switch (num_rows) {
    case 1: return multiply_packed<F, 1>(panel, num_groups, x, row, sums);
    case 2: return multiply_packed<F, 2>(panel, num_groups, x, row, sums);
    case 3: return multiply_packed<F, 3>(panel, num_groups, x, row, sums);
    case 4: return multiply_packed<F, 4>(panel, num_groups, x, row, sums);
    case 5: return multiply_packed<F, 5>(panel, num_groups, x, row, sums);
    case 6: return multiply_packed<F, 6>(panel, num_groups, x, row, sums);
    case 7: return multiply_packed<F, 7>(panel, num_groups, x, row, sums);
    default: return multiply_packed<F, 8>(panel, num_groups, x, row, sums);
  }
}

// `quantize_group`, to the bit.
template <class F>
inline void quantize_group512(const uint16_t* x, Activations& y, int row) {
  const __m512i values = _mm512_loadu_si512(x);
  const __m512i magnitudes = _mm512_and_si512(values, _mm512_set1_epi16(0x7FFF));
  const __m256i half = _mm256_max_epu16(_mm512_castsi512_si256(magnitudes), _mm512_extracti64x4_epi64(magnitudes, 1));
  const __m128i quarter = _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  const __m128i smallest = _mm_minpos_epu16(_mm_xor_si128(quarter, _mm_set1_epi16(-1)));  // of their complements
  const Rounding rounding(static_cast<uint16_t>(~_mm_cvtsi128_si32(smallest)));
  const __mmask32 kept = rounding.is_usual ? 0xFFFFFFFF : 0;
  const __m512i usual = _mm512_maskz_mov_epi16(kept, values);
  int32_t sums[2];
  for (int part = 0; part < 2; ++part) {
    const __m512 wide = widen(part ? _mm512_extracti64x4_epi64(usual, 1) : _mm512_castsi512_si256(usual));
    const __m512 scaled = _mm512_mul_ps(wide, _mm512_set1_ps(rounding.inverse));
    const __m512i quants = _mm512_cvtps_epi32(scaled);
    _mm_store_si128(reinterpret_cast<__m128i*>(y.quants[row] + part * 16), _mm512_cvtepi32_epi8(quants));
    sums[part] = _mm512_reduce_add_epi32(quants);
  }
  set_sums<F>(y, row, rounding.scale, sums[0], sums[1]);
}

// A panel, left packed.
template <class F>
struct PackedPanel {
  const uint8_t* panel;
  int64_t num_groups;

  PackedPanel(const Grouped& g, const uint8_t* packed, int64_t /*num_rows*/)
      : panel(packed), num_groups(g.num_groups) {}

  static void quantize(const uint16_t* x, Activations& y, int row) { quantize_group512<F>(x, y, row); }

  // sums [num_rows, 32] of up to 16 rows.
  void multiply(const Activations* x, int num_rows, float* sums) const {
    for (int row = 0; row < num_rows; row += kMaxPackedRows)
      multiply_packed<F>(panel, num_groups, x, row, num_rows - row < kMaxPackedRows ? num_rows - row : kMaxPackedRows,
                         sums);
  }
};

}  // namespace
}  // namespace headrace
