// Linear layers over weights quantized in groups, on AVX2. Its instruction multiplies unsigned bytes by signed ones and
// adds pairs in 16 bits, where the products of quants of up to six bits, unsigned as they are packed, leave room for
// more.
#include <immintrin.h>

#include "grouped_generic.h"
#include "row_groups.h"

namespace headrace {
namespace {

constexpr int kStrips = 4;      // of 8 rows of the weight, in a panel
constexpr int kStripQuad = 32;  // bytes of a quad of columns

inline __m256i load_strip(const uint8_t* x) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)); }
inline __m256 load_halves(const uint8_t* x) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
}
inline __m128i load_8_bytes(const uint8_t* x) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(x)); }
inline __m256 load_unsigned(const uint8_t* x) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load_8_bytes(x))); }
inline __m256 load_signed(const uint8_t* x) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_8_bytes(x))); }

inline __m256i broadcast_quad(const void* quad) {
  int32_t four;
  std::memcpy(&four, quad, sizeof four);
  return _mm256_set1_epi32(four);
}

// 32 bits as bytes of `value` and 0.
inline __m256i spread_bits(const uint8_t* bits, __m256i value) {
  const __m256i byte_of = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i bit_of = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
  const __m256i chosen = _mm256_and_si256(_mm256_shuffle_epi8(broadcast_quad(bits), byte_of), bit_of);
  return _mm256_and_si256(_mm256_cmpeq_epi8(chosen, bit_of), value);
}

// One group of eight rows of the weight.
template <class F>
struct Strip {
  __m256i quads[kGroupQuads];  // as they are packed: those of eight bits signed, the others not
  __m256 scales[F::kParts];
  __m256 others;  // the zero points or minima

  Strip(const uint8_t* panel, int64_t group, int i) {
    const uint8_t* head = F::head(panel, group);
    const uint8_t* halves = head + i * 16;
    load_quads(F::quants(panel, group), i / 2, i % 2);
    for (int part = 0; part < F::kParts; ++part) {
      scales[part] = load_halves(halves);
      const int64_t factors = (group % F::kBlockGroups * F::kParts + part) * kPanelRows + i * 8;
      if constexpr (F::kHasMins)
        scales[part] = _mm256_mul_ps(scales[part], load_unsigned(head + F::kFactors + factors));
      if constexpr (F::kIsSuper && !F::kHasMins)
        scales[part] = _mm256_mul_ps(scales[part], load_signed(head + F::kFactors + factors));
    }
    if constexpr (F::kHasZeros) others = load_unsigned(head + F::kHalves + i * 8);
    if constexpr (F::kHasMins) {
      const uint8_t* factors = head + F::kMinFactors + group % F::kBlockGroups * kPanelRows + i * 8;
      others = _mm256_mul_ps(load_halves(halves + F::kHalves), load_unsigned(factors));
    }
  }

  // `sums` with this group's part of a row.
  __m256 add_to(__m256 sums, const Activations& x, int row) const {
    const __m256 x_scale = _mm256_set1_ps(x.scales[row]);
    for (int part = 0; part < F::kParts; ++part) {
      __m256 total = _mm256_cvtepi32_ps(multiply(part * F::kPartQuads, x.quants[row], x.offsets[part][row]));
      if constexpr (F::kHasZeros) total = _mm256_fnmadd_ps(others, _mm256_set1_ps(x.sums[row]), total);  // exact
      sums = _mm256_fmadd_ps(total, _mm256_mul_ps(scales[part], x_scale), sums);
    }
    if constexpr (F::kHasMins) sums = _mm256_fnmadd_ps(others, _mm256_set1_ps(x.sums[row]), sums);
    return sums;
  }

 private:
  // Of the `half`-th half of a tile's rows.
  void load_quads(const uint8_t* quants, int tile, int half) {
    constexpr int kTileQuants = kColumnTile * kGroup;
    if constexpr (F::kBits == 8) {
      const uint8_t* of_tile = quants + tile * kTileQuants + half * kStripQuad;
      for (int i = 0; i < kGroupQuads; ++i) quads[i] = load_strip(of_tile + i * 2 * kStripQuad);
      return;
    }
    const __m256i nibble = _mm256_set1_epi8(15);
    for (int i = 0; i < kGroupQuads / 2; ++i) {
      const __m256i both = load_strip(quants + tile * kTileQuants / 2 + i * 2 * kStripQuad + half * kStripQuad);
      quads[2 * i] = _mm256_and_si256(both, nibble);
      quads[2 * i + 1] = _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble);
    }
    for (int plane = 0; plane < F::kBits - 4; ++plane) {
      const uint8_t* bits = quants + F::kPlanes + plane * F::kPlane + tile * kTileQuants / 8 + half * kStripQuad / 8;
      const __m256i value = _mm256_set1_epi8(static_cast<char>(16 << plane));
      for (int i = 0; i < kGroupQuads; ++i)
        quads[i] = _mm256_or_si256(quads[i], spread_bits(bits + i * 2 * kStripQuad / 8, value));
    }
  }

  // The sums of products with the quads of a part, the first of which is `quad`; less the zero point, with the offset.
  __m256i multiply(int quad, const int8_t* x, int32_t offset) const {
    constexpr int kTogether = F::kBits == 8 ? 1 : 1 << (7 - F::kBits);  // whose sums fit in 16 bits
    constexpr int kBatch = kTogether < F::kPartQuads ? kTogether : F::kPartQuads;
    __m256i total = F::kBits == 8 ? _mm256_setzero_si256() : _mm256_set1_epi32(offset);
    for (int i = quad; i < quad + F::kPartQuads; i += kBatch) {
      __m256i pairs = multiply_quad(i, x);
      for (int j = 1; j < kBatch; ++j) pairs = _mm256_add_epi16(pairs, multiply_quad(i + j, x));
      total = _mm256_add_epi32(total, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    return total;
  }

  __m256i multiply_quad(int i, const int8_t* x) const {
    const __m256i four = broadcast_quad(x + i * 4);
    if constexpr (F::kBits == 8)
      return _mm256_maddubs_epi16(_mm256_abs_epi8(quads[i]), _mm256_sign_epi8(four, quads[i]));
    return _mm256_maddubs_epi16(quads[i], four);
  }
};

// sums [kRows, 32] of a panel, of the rows of a block from `row` on. `strip(group, i)` is the i-th of a group.
template <class F, int kRows, class Strips>
void multiply_strips(const Strips& strip, int64_t num_groups, const Activations* x, int row, float* sums) {
  __m256 total[kRows][kStrips];
  for (auto& of_row : total)
    for (__m256& of_strip : of_row) of_strip = _mm256_setzero_ps();
  for (int64_t group = 0; group < num_groups; ++group)
    for (int i = 0; i < kStrips; ++i) {
      const Strip<F>& weights = strip(group, i);
      for (int r = 0; r < kRows; ++r) total[r][i] = weights.add_to(total[r][i], x[group], row + r);
    }
  for (int r = 0; r < kRows; ++r)
    for (int i = 0; i < kStrips; ++i) _mm256_storeu_ps(sums + (row + r) * kPanelRows + i * 8, total[r][i]);
}

// A panel, left packed for few rows, else unpacked to [groups][strips].
template <class F>
struct Panel {
  const uint8_t* packed;
  int64_t num_groups;
  Strip<F>* strips = nullptr;

  Panel(const Grouped& g, const uint8_t* packed, int64_t num_rows) : packed(packed), num_groups(g.num_groups) {
    if (num_rows <= kMostRows) return;
    strips = reinterpret_cast<Strip<F>*>(scratch(Scratch::kPanels, num_groups * kStrips * int64_t{sizeof(Strip<F>)}));
    for (int64_t group = 0; group < num_groups; ++group)
      for (int i = 0; i < kStrips; ++i) new (strips + group * kStrips + i) Strip<F>(packed, group, i);
  }

  static void quantize(const uint16_t* x, Activations& y, int row) { quantize_group<F>(x, y, row); }

  // sums [num_rows, 32] of up to 16 rows.
  void multiply(const Activations* x, int num_rows, float* sums) const {
    for (int row = 0; row < num_rows; row += kMostRows)
      with_rows(std::min(kMostRows, num_rows - row), [&](auto rows) {
        if (strips)
          multiply_strips<F, rows>([&](int64_t group, int i) -> const Strip<F>& { return strips[group * kStrips + i]; },
                                   num_groups, x, row, sums);
        else
          multiply_strips<F, rows>([&](int64_t group, int i) { return packed_strip(group, i); }, num_groups, x, row,
                                   sums);
      });
  }

 private:
  Strip<F> packed_strip(int64_t group, int i) const {
    constexpr int64_t kPrefetchedAhead = 2048;  // bytes
    constexpr int64_t kBytes = F::kBlock / F::kBlockGroups / kStrips;
    const uint8_t* ahead = F::quants(packed, group) + kPrefetchedAhead + i * kBytes;
    for (int64_t at = 0; at < kBytes; at += 64) _mm_prefetch(reinterpret_cast<const char*>(ahead + at), _MM_HINT_T0);
    return Strip<F>(packed, group, i);
  }
};

}  // namespace

extern const Entry* const kGroupedAvx2 = kLinearGrouped<Panel>;
extern const Entry* const kGroupedEmbeddingAvx2 = kEmbeddingGrouped;

}  // namespace headrace
