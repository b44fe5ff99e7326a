// What comes before attention, for every instruction set: each head of a token's Q and K is normalised, if there is a
// weight, and rotated; K and V go into the cache.
//
// `Set` is what an instruction set has for it: Elements are kLanes floats beside each other, with an operator *, and
// rotate512.h and rotate_generic.h define what else there is.
#pragma once
#include <algorithm>
#include <cmath>

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

// store(i, elements i to i + kLanes) of a head of Q or K.
template <class Set, class Store>
void rotate(const uint16_t* x, const float* norm, double eps, const float* cos_sin, int64_t dim, const Store& store) {
  using Elements = typename Set::Elements;
  Elements factor = Set::all(1.0f);
  if (norm) {
    const float mean = Set::sum_of_squares(x, dim) / static_cast<float>(dim);
    factor = Set::all(1.0f / std::sqrt(mean + static_cast<float>(eps)));
  }
  const auto element = [&](int64_t i) {
    return norm ? Set::load(x + i) * factor * Set::load(norm + i) : Set::load(x + i);
  };
  const int64_t half = dim / 2;
  for (int64_t i = 0; i < half; i += Set::kLanes) {
    const Elements first = element(i), second = element(half + i);
    const Elements cos = Set::load(cos_sin + i), sin = Set::load(cos_sin + half + i);
    store(i, Set::multiply_subtract(first, cos, second * sin));
    store(half + i, Set::multiply_add(second, cos, first * sin));
  }
}

// The writers write a token into the cache. `key` and `value` are functions that give a head's elements to another as
// often as they are called: key(store) calls store(i, elements i to i + kLanes).
template <class Set>
class Bfloat16Writer {
 public:
  explicit Bfloat16Writer(const RotateAndStoreArguments& a)
      : kv_(static_cast<uint16_t*>(a.kv)), layout_{a.block_stride, a.block_size, a.head_dim} {}

  template <class Key>
  void write_key(Slot slot, int64_t head, const Key& key) const {
    uint16_t* kv = layout_.head(kv_, slot.block, head);
    key([&](int64_t i, auto elements) { Set::store_key(layout_.key(kv, slot.offset, i) + i % 2, elements); });
  }

  template <class Value>
  void write_value(Slot slot, int64_t head, const Value& value) const {
    uint16_t* kv = layout_.head(kv_, slot.block, head);
    value([&](int64_t i, auto elements) {
      Set::store_value(layout_.value(kv, slot.offset, i), slot.offset % 2, elements);
    });
  }

 private:
  uint16_t* const kv_;
  const Layout layout_;
};

// The largest of a head's elements becomes 127.
template <class Set>
class Int8Writer {
 public:
  explicit Int8Writer(const RotateAndStoreArguments& a)
      : kv_(static_cast<int8_t*>(a.kv)), layout_{a.block_stride, a.block_size, a.head_dim} {}

  template <class Key>
  void write_key(Slot slot, int64_t head, const Key& key) const {
    int8_t* kv = layout_.head(kv_, slot.block, head);
    int8_t* to = layout_.key(kv, slot.offset);
    layout_.key_scales(kv)[slot.offset] =
        quantize(key, [to](int64_t i, auto quants) { Set::store_apart(to + i * kGroup, quants); });
  }

  template <class Value>
  void write_value(Slot slot, int64_t head, const Value& value) const {
    int8_t* kv = layout_.head(kv_, slot.block, head);
    int8_t* to = layout_.value(kv, slot.offset);
    layout_.value_scales(kv)[slot.offset] =
        quantize(value, [to](int64_t i, auto quants) { Set::store_together(to + i, quants); });
  }

 private:
  // What the integers given to `store` are to be multiplied by.
  template <class Head, class Store>
  static float quantize(const Head& head, const Store& store) {
    typename Set::Largest largest;
    head([&](int64_t, auto elements) { largest.add(elements); });
    const float scale = largest.scale();
    const auto inverse = Set::all(inverse_of(scale));
    head([&](int64_t i, auto elements) { store(i, Set::quantize(elements, inverse)); });
    return scale;
  }

  int8_t* const kv_;
  const Int8Layout layout_;
};

template <class Set, class Writer>
class RotateAndStore {
 public:
  RotateAndStore(const RotateAndStoreArguments& arguments, const Step& step)
      : a_(arguments), step_(step), writer_(arguments) {}

  void run(Pool& pool) const {
    // The keys of 16 tokens share cache lines: of a prompt's, one thread writes them.
    const int64_t num_tokens = step_.num_tokens, shared = num_tokens / (4 * pool.num_threads());
    const int64_t tokens = std::clamp<int64_t>(shared, 1, kGroup);  // of a task
    pool.run((num_tokens + tokens - 1) / tokens, [&](int64_t task) {
      for (int64_t token = task * tokens; token < std::min(num_tokens, (task + 1) * tokens); ++token) run(token);
    });
  }

 private:
  void run(int64_t token) const {
    const Slot slot{step_.slots[token] / a_.block_size, step_.slots[token] % a_.block_size};
    const int64_t dim = a_.head_dim;
    const float* cos_sin = a_.table + step_.positions[token] * dim;
    const uint16_t* x = a_.qkv + token * a_.qkv_stride;
    uint16_t* q = a_.q + token * a_.q_stride;
    for (int64_t head = 0; head < a_.num_heads; ++head, x += dim, q += dim)
      rotate<Set>(x, a_.q_norm, a_.eps, cos_sin, dim, [q](int64_t i, auto elements) { Set::store(q + i, elements); });
    for (int64_t head = 0; head < a_.num_kv_heads; ++head, x += dim) {
      writer_.write_key(slot, head, [&](const auto& store) { rotate<Set>(x, a_.k_norm, a_.eps, cos_sin, dim, store); });
      const uint16_t* v = x + a_.num_kv_heads * dim;
      writer_.write_value(slot, head, [&](const auto& store) {
        for (int64_t i = 0; i < dim; i += Set::kLanes) store(i, Set::load(v + i));
      });
    }
  }

  const RotateAndStoreArguments& a_;
  const Step& step_;
  const Writer writer_;
};

template <class Set, template <class> class Writer>
void rotate_and_store(const void* words, const Context& context) {
  RotateAndStore<Set, Writer<Set>>(arguments<RotateAndStoreArguments>(words), context.step).run(context.pool);
}

}  // namespace
}  // namespace headrace
