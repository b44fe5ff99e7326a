// What comes before attention, in plain loops that a compiler turns into vectors of any width.
#pragma once
#include <cmath>

#include "attention_generic.h"
#include "rotate.h"

namespace headrace {
namespace {

struct GenericRotation {
  // store(i, element)
  template <class Store>
  static void rotate(const float* x, const float* norm, double eps, const float* cos_sin, int64_t dim,
                     const Store& store) {
    float factor = 1.0f;
    if (norm) {
      float squares = 0.0f;
      for (int64_t i = 0; i < dim; ++i) squares += x[i] * x[i];
      factor = 1.0f / std::sqrt(squares / static_cast<float>(dim) + static_cast<float>(eps));
    }
    const int64_t half = dim / 2;
    for (int64_t i = 0; i < half; ++i) {
      const float first = norm ? x[i] * factor * norm[i] : x[i];
      const float second = norm ? x[half + i] * factor * norm[half + i] : x[half + i];
      store(i, first * cos_sin[i] - second * cos_sin[half + i]);
      store(half + i, second * cos_sin[i] + first * cos_sin[half + i]);
    }
  }

  static auto rounding_to(uint16_t* q) {
    return [q](int64_t i, float element) { q[i] = round_to_bfloat16(element); };
  }
};

class Bfloat16Writer {
 public:
  explicit Bfloat16Writer(const RotateAndStoreArguments& a)
      : kv_(static_cast<uint16_t*>(a.kv)), layout_{a.block_stride, a.block_size, a.head_dim} {}

  template <class Key>
  void write_key(Slot slot, int64_t head, const Key& key) const {
    uint16_t* kv = layout_.head(kv_, slot.block, head);
    key([&](int64_t i, float element) { layout_.key(kv, slot.offset, i)[i % 2] = round_to_bfloat16(element); });
  }

  void write_value(Slot slot, int64_t head, const float* v) const {
    uint16_t* kv = layout_.head(kv_, slot.block, head);
    for (int64_t i = 0; i < layout_.head_dim; ++i) *layout_.value(kv, slot.offset, i) = round_to_bfloat16(v[i]);
  }

 private:
  uint16_t* const kv_;
  const Layout layout_;
};

// The largest of a head's elements becomes 127.
class Int8Writer {
 public:
  explicit Int8Writer(const RotateAndStoreArguments& a)
      : kv_(static_cast<int8_t*>(a.kv)), layout_{a.block_stride, a.block_size, a.head_dim} {}

  template <class Key>
  void write_key(Slot slot, int64_t head, const Key& key) const {
    int8_t* kv = layout_.head(kv_, slot.block, head);
    Largest largest;
    key([&](int64_t, float element) { largest.add(element); });
    layout_.key_scales(kv)[slot.offset] = largest.scale();
    const float inverse = inverse_of(largest.scale());
    int8_t* to = layout_.key(kv, slot.offset);
    key([&](int64_t i, float element) { to[i * kGroup] = quantize(element, inverse); });
  }

  void write_value(Slot slot, int64_t head, const float* v) const {
    int8_t* kv = layout_.head(kv_, slot.block, head);
    Largest largest;
    for (int64_t i = 0; i < layout_.head_dim; ++i) largest.add(v[i]);
    layout_.value_scales(kv)[slot.offset] = largest.scale();
    const float inverse = inverse_of(largest.scale());
    int8_t* to = layout_.value(kv, slot.offset);
    for (int64_t i = 0; i < layout_.head_dim; ++i) to[i] = quantize(v[i], inverse);
  }

 private:
  class Largest {
   public:
    void add(float element) {
      largest_ = std::max(largest_, std::fabs(element));
      has_nan_ |= element != element;  // which a maximum need not keep
    }
    float scale() const { return has_nan_ ? NAN : largest_ / kLargestInt8; }

   private:
    float largest_ = 0.0f;
    bool has_nan_ = false;
  };

  // Beside a NaN or an infinity any int8 will do: the scale is none that gives a number.
  static int8_t quantize(float element, float inverse) {
    const float scaled = element * inverse;
    return std::fabs(scaled) < kLargestInt8 + 0.5f ? static_cast<int8_t>(std::nearbyint(scaled)) : int8_t{0};
  }

  int8_t* const kv_;
  const Int8Layout layout_;
};

template <class Writer>
void rotate_and_store(const void* words, const Context& context) {
  RotateAndStore<GenericRotation, Writer>(arguments<RotateAndStoreArguments>(words), context.step).run(context.pool);
}

}  // namespace
}  // namespace headrace
