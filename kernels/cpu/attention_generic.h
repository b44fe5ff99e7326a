// Attention, and what comes before it, in plain loops that a compiler turns into vectors of any width.
#pragma once
#include <cmath>

#include "attention_flash.h"

namespace headrace {
namespace {

inline float float_of_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// A bfloat16 is the upper half of a float.
inline float widen(uint16_t bits) { return float_of_bits(static_cast<uint32_t>(bits) << 16); }

// Two that lie beside each other.
inline uint32_t pair_of(const uint16_t* x) {
  uint32_t pair;
  std::memcpy(&pair, x, sizeof pair);
  return pair;
}
inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float first_of(uint32_t pair) { return float_of_bits(pair << 16); }
inline float second_of(uint32_t pair) { return float_of_bits(pair & 0xFFFF0000u); }

// Rounds to the nearest, of two equally near to the even one; a NaN stays one.
inline uint16_t round_to_bfloat16(float value) {
  const uint32_t bits = bits_of(value);
  if (value != value) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// 2^x for x <= 0 within 2e-7 of it, relatively. Exactly 1 at 0, and 0 from -126 down.
inline float exp2_of(float x) {
  // Keys that are not seen may have any score, and a NaN is no integer.
  const float bounded = x > -126.0f ? std::min(x, 0.0f) : -126.0f;
  const int n = static_cast<int>(bounded - 0.5f);
  const float f = x - static_cast<float>(n);
  float p = 1.326472707e-3f;
  p = p * f + 9.671512649e-3f;
  p = p * f + 5.550733744e-2f;
  p = p * f + 2.402224209e-1f;
  p = p * f + 6.931469776e-1f;
  p = p * f + 1.0f;
  const float result = p * float_of_bits(static_cast<uint32_t>(n + 127) << 23);
  return x < -126.0f ? 0.0f : result;
}

// The two products of `Attention`, each done when it is asked for.
class GenericProducts {
 public:
  GenericProducts(const uint16_t* q, int64_t num_rows, int64_t head_dim, int64_t block_size, float* sums)
      : q_(q), num_rows_(num_rows), head_dim_(head_dim), block_size_(block_size), sums_(sums) {}

  // Starts scores[row][key] = q[row] . keys[key], not yet scaled.
  void score(const KeyTile& tile, float* scores) const {
    for (int64_t row = 0; row < num_rows_; ++row)
      for (int64_t group = 0; group < tile.num_groups; ++group)
        score_group(q_ + row * head_dim_, tile.keys[group], scores + row * kKeyTile + group * kGroup);
  }

  // Starts sums[row] += weights[row] @ values.
  void add(const float* weights, const KeyTile& tile) const {
    for (int64_t row = 0; row < num_rows_; ++row)
      for (int64_t key = 0; key < tile.num_keys; key += 2) {
        const uint16_t* values = tile.values[key / block_size_] + key % block_size_ * head_dim_;
        const float* weight = weights + row * kKeyTile + key;
        add_pair(weight[0], weight[1], values, sums_ + row * head_dim_);
      }
  }

  // Does a share of what was started: as much as `done` is of `all`.
  void advance(int64_t /*done*/, int64_t /*all*/) const {}
  void finish() const {}

 private:
  void score_group(const uint16_t* q, const uint16_t* keys, float* scores) const {
    float even[kGroup] = {}, odd[kGroup] = {};
    for (int64_t i = 0; i < head_dim_; i += 2, keys += kPairStride) {
      const float q_even = widen(q[i]), q_odd = widen(q[i + 1]);
      for (int64_t token = 0; token < kGroup; ++token) {
        const uint32_t pair = pair_of(keys + token * 2);
        even[token] += q_even * first_of(pair);
        odd[token] += q_odd * second_of(pair);
      }
    }
    for (int64_t token = 0; token < kGroup; ++token) scores[token] = even[token] + odd[token];
  }

  void add_pair(float first, float second, const uint16_t* values, float* sums) const {
    for (int64_t i = 0; i < head_dim_; ++i) {
      const uint32_t pair = pair_of(values + i * 2);
      sums[i] += first * first_of(pair) + second * second_of(pair);
    }
  }

  const uint16_t* const q_;
  const int64_t num_rows_, head_dim_, block_size_;
  float* const sums_;
};

// What `Attention` needs of an instruction set.
struct GenericAttention : WidensPairs<GenericAttention> {
  using Weight = float;
  using Products = GenericProducts;

  // Of every row: `max` over the keys it sees in a tile too, and `rescale` for the change of it.
  static void raise_max(const float* scores, int64_t num_rows, int64_t /*num_keys*/, float scale2, RowStates& rows) {
    for (int64_t row = 0; row < num_rows; ++row) {
      const Visible visible = rows.visible[row];
      float max = rows.max[row];
      for (int64_t key = visible.begin; key < visible.end; ++key)
        max = std::max(max, scores[row * kKeyTile + key] * scale2);
      rows.rescale[row] = exp2_of(rows.max[row] - max), rows.max[row] = max;
    }
  }

  // One row's weights of a tile, 2^(score * scale2 - max) or 0 for keys that it does not see, and their totals. With
  // `value_scales`, of each group of keys, the weights are multiplied by these and the totals are not.
  static void weigh(const float* scores, int64_t num_keys, float scale2, const RowStates& rows, int64_t row,
                    const float* const* value_scales, float* weights, float* totals) {
    const Visible visible = rows.visible[row];
    const float max = rows.max[row];
    for (int64_t key = 0; key < num_keys; ++key) weights[key] = exp2_of(scores[key] * scale2 - max);
    for (int64_t key = 0; key < num_keys; ++key)
      if (key < visible.begin || key >= visible.end) weights[key] = 0.0f;
    for (int64_t lane = 0; lane < kGroup; ++lane) totals[lane] *= rows.rescale[row];
    for (int64_t key = 0; key < num_keys; key += kGroup)
      for (int64_t lane = 0; lane < kGroup; ++lane) totals[lane] += weights[key + lane];
    if (value_scales) scale_scores(weights, num_keys / kGroup, value_scales);
  }

  // One row's, of each group of keys.
  static void scale_scores(float* scores, int64_t num_groups, const float* const* scales) {
    for (int64_t group = 0; group < num_groups; ++group, scores += kGroup)
      for (int64_t lane = 0; lane < kGroup; ++lane) scores[lane] *= scales[group][lane];
  }

  static void rescale(float* sums, int64_t head_dim, float factor) {
    for (int64_t i = 0; i < head_dim; ++i) sums[i] *= factor;
  }

  // Elements of `first` by turns with those of `second`. The lower half of such a float is zeros.
  static void widen_pairs(const int8_t* first, const int8_t* second, int64_t n, uint16_t* to) {
    for (int64_t i = 0; i < n; ++i) {
      const float low = static_cast<float>(first[i]), high = static_cast<float>(second[i]);
      const uint32_t pair = bits_of(low) >> 16 | bits_of(high);
      std::memcpy(to + i * 2, &pair, sizeof pair);
    }
  }

  // out = sums / total
  static void divide(const float* sums, const float* totals, int64_t head_dim, uint16_t* out) {
    float total = 0.0f;
    for (int64_t lane = 0; lane < kGroup; ++lane) total += totals[lane];
    for (int64_t i = 0; i < head_dim; ++i) out[i] = round_to_bfloat16(sums[i] / total);
  }
};

template <class Cache>
void attention(const void* words, const Context& context) {
  Attention<GenericAttention, Cache>(arguments<AttentionArguments>(words), context.step).run(context.pool);
}

}  // namespace
}  // namespace headrace
