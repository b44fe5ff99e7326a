// The rows of a tile between the two products of attention, eight keys at a time.
#pragma once
#include <cmath>

#include "attention_flash.h"
#include "vector256.h"

namespace headrace {
namespace {

// What AVX2 gives `Attention`; see attention_generic.h.
struct Rows256 : WidensPairs<Rows256> {
  using Weight = float;

  static void raise_max(const float* scores, int64_t num_rows, int64_t num_keys, float scale2, RowStates& rows) {
    alignas(32) float highest[kTaskRows];
    const int64_t num_padded = (num_rows + 7) / 8 * 8;
    for (int64_t row = 0; row < num_rows; ++row)
      highest[row] = highest_of(scores + row * kKeyTile, num_keys, rows.visible[row]);
    for (int64_t row = num_rows; row < num_padded; ++row) highest[row] = kNoScore;
    for (int64_t row = 0; row < num_padded; row += 8) {
      const __m256 before = load_float(rows.max + row);
      const __m256 max = _mm256_max_ps(_mm256_mul_ps(load_float(highest + row), _mm256_set1_ps(scale2)), before);
      store_float(rows.rescale + row, exp2_of(_mm256_sub_ps(before, max)));
      store_float(rows.max + row, max);
    }
  }

  static void weigh(const float* scores, int64_t num_keys, float scale2, const RowStates& rows, int64_t row,
                    const float* const* value_scales, float* weights, float* totals) {
    const __m256 scale = _mm256_set1_ps(scale2), max = _mm256_set1_ps(rows.max[row]);
    const __m256 rescale = _mm256_set1_ps(rows.rescale[row]);
    __m256 total[2] = {_mm256_mul_ps(load_float(totals), rescale), _mm256_mul_ps(load_float(totals + 8), rescale)};
    const Visible visible = rows.visible[row];
    const bool is_whole = sees_whole_tile(visible);
    for (int64_t key = 0; key < num_keys; key += kGroup)
      for (int half = 0; half < 2; ++half) {
        const int64_t first = key + half * 8;
        const __m256 score = is_whole ? load_float(scores + first) : load_visible(scores, first, visible);
        const __m256 weight = exp2_of(_mm256_fmsub_ps(score, scale, max));
        total[half] = _mm256_add_ps(total[half], weight);
        store_float(weights + first,
                    value_scales ? _mm256_mul_ps(weight, load_float(value_scales[key / kGroup] + half * 8)) : weight);
      }
    store_float(totals, total[0]);
    store_float(totals + 8, total[1]);
  }

  static void scale_scores(float* scores, int64_t num_groups, const float* const* scales) {
    for (int64_t group = 0; group < num_groups; ++group, scores += kGroup)
      for (int half = 0; half < 2; ++half)
        store_float(scores + half * 8,
                    _mm256_mul_ps(load_float(scores + half * 8), load_float(scales[group] + half * 8)));
  }

  static void rescale(float* sums, int64_t head_dim, float factor) {
    const __m256 factors = _mm256_set1_ps(factor);
    for (int64_t i = 0; i < head_dim; i += 8) store_float(sums + i, _mm256_mul_ps(load_float(sums + i), factors));
  }

  static void divide(const float* sums, const float* totals, int64_t head_dim, uint16_t* out) {
    const float total = horizontal_sum(_mm256_add_ps(load_float(totals), load_float(totals + 8)));
    const __m256 inverse = _mm256_set1_ps(1.0f / total);
    for (int64_t i = 0; i < head_dim; i += 8) store_bfloat16(out + i, _mm256_mul_ps(load_float(sums + i), inverse));
  }

  // Elements of `first` by turns with those of `second`, as bfloat16; the lower half of such a float is zeros.
  static void widen_pairs(const int8_t* first, const int8_t* second, int64_t n, uint16_t* to) {
    for (int64_t i = 0; i < n; i += 8, to += 16) {
      const __m256i low = _mm256_srli_epi32(bits_of(first + i), 16);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_blend_epi16(low, bits_of(second + i), 0xAA));
    }
  }

 private:
  static bool sees_whole_tile(Visible visible) { return visible.begin == 0 && visible.end == kKeyTile; }

  static float highest_of(const float* scores, int64_t num_keys, Visible visible) {
    __m256 highest = _mm256_set1_ps(kNoScore);
    if (sees_whole_tile(visible))
      for (int64_t key = 0; key < kKeyTile; key += 8) highest = _mm256_max_ps(load_float(scores + key), highest);
    else
      for (int64_t key = 0; key < num_keys; key += 8)
        highest = _mm256_max_ps(load_visible(scores, key, visible), highest);
    return horizontal_max(highest);
  }

  // Minus infinity where a key is not seen.
  static __m256 load_visible(const float* scores, int64_t first, Visible visible) {
    const __m256i key = _mm256_add_epi32(_mm256_set1_epi32(static_cast<int32_t>(first)),
                                         _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    const __m256i is_before = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int32_t>(visible.begin)), key);
    const __m256i is_seen = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int32_t>(visible.end)), key);
    const __m256 mask = _mm256_castsi256_ps(_mm256_andnot_si256(is_before, is_seen));
    return _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), load_float(scores + first), mask);
  }

  static __m256i bits_of(const int8_t* x) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(x));
    return _mm256_castps_si256(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)));
  }
};

}  // namespace
}  // namespace headrace
