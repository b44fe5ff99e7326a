// The rows of a tile between the two products of attention, sixteen keys at a time.
#pragma once
#include <cmath>

#include "attention_flash.h"
#include "vector512.h"

namespace headrace {
namespace {

// Row r in lane r: the largest of vector r.
inline __m512 max_of_each(const __m512* rows) {
  __m512 fours[4];  // of four rows each, their maxima over a quarter of the lanes
  for (int i = 0; i < 4; ++i, rows += 4) {
    const __m512 first = _mm512_max_ps(_mm512_unpacklo_ps(rows[0], rows[1]), _mm512_unpackhi_ps(rows[0], rows[1]));
    const __m512 second = _mm512_max_ps(_mm512_unpacklo_ps(rows[2], rows[3]), _mm512_unpackhi_ps(rows[2], rows[3]));
    fours[i] = _mm512_max_ps(_mm512_shuffle_ps(first, second, 0x44), _mm512_shuffle_ps(first, second, 0xEE));
  }
  const auto halve = [](__m512 a, __m512 b) {
    return _mm512_max_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD));
  };
  return halve(halve(fours[0], fours[1]), halve(fours[2], fours[3]));
}

// What both sets with AVX512 give `Attention`; see attention_generic.h.
struct Rows512 {
  using Weight = uint16_t;  // bfloat16

  static void raise_max(const float* scores, int64_t num_rows, int64_t num_keys, float scale2, RowStates& rows) {
    for (int64_t first = 0; first < num_rows; first += 16) {
      __m512 highest[16];
      for (int64_t i = 0; i < 16; ++i) {
        const int64_t row = first + i;
        highest[i] = row < num_rows ? highest_of(scores + row * kKeyTile, num_keys, rows.visible[row])
                                    : _mm512_set1_ps(kNoScore);
      }
      const __m512 before = load_float(rows.max + first);
      const __m512 max = _mm512_max_ps(_mm512_mul_ps(max_of_each(highest), _mm512_set1_ps(scale2)), before);
      store_float(rows.rescale + first, exp2_of(_mm512_sub_ps(before, max)));
      store_float(rows.max + first, max);
    }
  }

  static void weigh(const float* scores, int64_t num_keys, float scale2, const RowStates& rows, int64_t row,
                    const float* const* value_scales, uint16_t* weights, float* totals) {
    const Scale scale{_mm512_set1_ps(scale2), _mm512_set1_ps(rows.max[row])};
    __m512 total = _mm512_mul_ps(load_float(totals), _mm512_set1_ps(rows.rescale[row]));
    if (value_scales)
      total = weigh_tile(scores, num_keys, scale, rows.visible[row], total, [&](int64_t key, __m512 a, __m512 b) {
        const __m512 first = load_float(value_scales[key / kGroup]), second = load_float(value_scales[key / kGroup + 1]);
        store_weights(weights + key, _mm512_mul_ps(a, first), _mm512_mul_ps(b, second));
      });
    else
      total = weigh_tile(scores, num_keys, scale, rows.visible[row], total,
                         [&](int64_t key, __m512 a, __m512 b) { store_weights(weights + key, a, b); });
    store_float(totals, total);
  }

  static void scale_scores(float* scores, int64_t num_groups, const float* const* scales) {
    for (int64_t group = 0; group < num_groups; ++group, scores += kGroup)
      store_float(scores, _mm512_mul_ps(load_float(scores), load_float(scales[group])));
  }

  static void widen_keys(const int8_t* from, int64_t head_dim, uint16_t* to) {
    for (int64_t i = 0; i < head_dim; i += 2, from += 2 * kGroup, to += kPairStride)
      _mm512_storeu_si512(to, widen_pairs(from, from + kGroup));
  }

  static void widen_values(const int8_t* from, int64_t num_tokens, int64_t head_dim, uint16_t* to) {
    for (int64_t token = 0; token < num_tokens; token += 2, from += 2 * head_dim)
      for (int64_t i = 0; i < head_dim; i += 16, to += 32)
        _mm512_storeu_si512(to, widen_pairs(from + i, from + head_dim + i));
  }

  static void rescale(float* sums, int64_t head_dim, float factor) {
    const __m512 factors = _mm512_set1_ps(factor);
    for (int64_t i = 0; i < head_dim; i += 16) store_float(sums + i, _mm512_mul_ps(load_float(sums + i), factors));
  }

  static void divide(const float* sums, const float* totals, int64_t head_dim, uint16_t* out) {
    const __m512 inverse = _mm512_set1_ps(1.0f / horizontal_sum(load_float(totals)));
    for (int64_t i = 0; i < head_dim; i += 16) store_bfloat16(out + i, _mm512_mul_ps(load_float(sums + i), inverse));
  }

 private:
  struct Scale {
    __m512 factor, max;
  };

  static bool sees_whole_tile(Visible visible) { return visible.begin == 0 && visible.end == kKeyTile; }

  static __m512 highest_of(const float* scores, int64_t num_keys, Visible visible) {
    if (sees_whole_tile(visible)) {
      __m512 highest = load_float(scores);
      for (int64_t key = 16; key < kKeyTile; key += 16) highest = _mm512_max_ps(highest, load_float(scores + key));
      return highest;
    }
    __m512 highest = _mm512_set1_ps(kNoScore);
    for (int64_t key = 0; key < num_keys; key += 16)
      highest = _mm512_max_ps(highest, load_visible(scores, key, visible));
    return highest;
  }

  static __m512 load_visible(const float* scores, int64_t key, Visible visible) {
    const auto lanes_before = [key](int64_t end) { return first_lanes(std::max<int64_t>(end - key, 0)); };
    const __mmask16 lanes = lanes_before(visible.end) & ~lanes_before(visible.begin);
    return _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), lanes, scores + key);
  }

  // store(key, weights of 16 keys, of the next 16) for all of a tile. Returns their sums, added to `total`.
  template <class Store>
  static __m512 weigh_tile(const float* scores, int64_t num_keys, const Scale& scale, Visible visible, __m512 total,
                           const Store& store) {
    const auto weigh_pair = [&](int64_t key, __m512 first, __m512 second) {
      first = exp2_of(_mm512_fmsub_ps(first, scale.factor, scale.max));
      second = exp2_of(_mm512_fmsub_ps(second, scale.factor, scale.max));
      store(key, first, second);
      total = _mm512_add_ps(_mm512_add_ps(total, first), second);
    };
    if (sees_whole_tile(visible))
      for (int64_t key = 0; key < kKeyTile; key += 32)
        weigh_pair(key, load_float(scores + key), load_float(scores + key + 16));
    else
      for (int64_t key = 0; key < num_keys; key += 32)
        weigh_pair(key, load_visible(scores, key, visible), load_visible(scores, key + 16, visible));
    return total;
  }

  // At once: a tile is loaded from them soon.
  static void store_weights(uint16_t* weights, __m512 first, __m512 second) {
    _mm512_storeu_si512(weights, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first)));
  }

  // Sixteen bfloat16 of `first` by turns with those of `second`. The lower half of such a float is zeros.
  static __m512i widen_pairs(const int8_t* first, const int8_t* second) {
    const auto bits_of = [](const int8_t* x) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
      return _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
    };
    return _mm512_mask_blend_epi16(0xAAAAAAAA, _mm512_srli_epi32(bits_of(first), 16), bits_of(second));
  }
};

}  // namespace
}  // namespace headrace
