// What comes before attention, for every instruction set: each head of a token's Q and K is normalised, if there is a
// weight, and rotated; K and V go into the cache.
#pragma once
#include <algorithm>

#include "attention.h"
#include "attention_layout.h"

namespace headrace {
namespace {

// Where a token's K and V go.
struct Slot {
  int64_t block, offset;
};

constexpr float kLargestInt8 = 127.0f;

// What elements that fit `scale` are multiplied by to be rounded to int8; 0 where they are too small to matter.
inline float inverse_of(float scale) { return scale < 1e-30f ? 0.0f : 1.0f / scale; }

// `Writer` writes a token into the cache: write_key(slot, head, key), where key(store) gives its elements to `store` as
// often as it is called, and write_value(slot, head, elements).
template <class Rotation, class Writer>
class RotateAndStore {
 public:
  RotateAndStore(const RotateAndStoreArguments& arguments, const Step& step)
      : a_(arguments), step_(step), writer_(arguments) {}

  void run(Pool& pool) const {
    constexpr int64_t kTokens = 4;  // of a task
    const int64_t num_tokens = step_.num_tokens;
    pool.run((num_tokens + kTokens - 1) / kTokens, [&](int64_t task) {
      for (int64_t token = task * kTokens; token < std::min(num_tokens, (task + 1) * kTokens); ++token) run(token);
    });
  }

 private:
  void run(int64_t token) const {
    const Slot slot{step_.slots[token] / a_.block_size, step_.slots[token] % a_.block_size};
    const int64_t dim = a_.head_dim;
    const float* cos_sin = a_.table + step_.positions[token] * dim;
    const float* x = a_.qkv + token * a_.qkv_stride;
    for (int64_t head = 0; head < a_.num_heads; ++head, x += dim)
      Rotation::rotate(x, a_.q_norm, a_.eps, cos_sin, dim, Rotation::rounding_to(a_.q + token * a_.q_stride + head * dim));
    for (int64_t head = 0; head < a_.num_kv_heads; ++head, x += dim) {
      writer_.write_key(slot, head, [&](const auto& store) {
        Rotation::rotate(x, a_.k_norm, a_.eps, cos_sin, dim, store);
      });
      writer_.write_value(slot, head, x + a_.num_kv_heads * dim);
    }
  }

  const RotateAndStoreArguments& a_;
  const Step& step_;
  const Writer writer_;
};

}  // namespace
}  // namespace headrace
