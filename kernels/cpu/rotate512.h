// What comes before attention, sixteen elements at a time.
#pragma once
#include <cmath>
#include <cstring>

#include "rotate.h"
#include "vector512.h"

namespace headrace {
namespace {

struct Rotation512 {
  // store(i, elements i to i + 16)
  template <class Store>
  static void rotate(const float* x, const float* norm, double eps, const float* cos_sin, int64_t dim,
                     const Store& store) {
    __m512 factor = _mm512_set1_ps(1.0f);
    if (norm) {
      __m512 squares = _mm512_setzero_ps();
      for (int64_t i = 0; i < dim; i += 16) squares = _mm512_fmadd_ps(load_float(x + i), load_float(x + i), squares);
      const float mean = horizontal_sum(squares) / static_cast<float>(dim);
      factor = _mm512_set1_ps(1.0f / std::sqrt(mean + static_cast<float>(eps)));
    }
    const auto element = [&](int64_t i) {
      return norm ? _mm512_mul_ps(_mm512_mul_ps(load_float(x + i), factor), load_float(norm + i)) : load_float(x + i);
    };
    const int64_t half = dim / 2;
    for (int64_t i = 0; i < half; i += 16) {
      const __m512 first = element(i), second = element(half + i);
      const __m512 cos = load_float(cos_sin + i), sin = load_float(cos_sin + half + i);
      store(i, _mm512_fmsub_ps(first, cos, _mm512_mul_ps(second, sin)));
      store(half + i, _mm512_fmadd_ps(second, cos, _mm512_mul_ps(first, sin)));
    }
  }

  static auto rounding_to(uint16_t* q) {
    return [q](int64_t i, __m512 elements) { store_bfloat16(q + i, elements); };
  }
};

class Bfloat16Writer {
 public:
  explicit Bfloat16Writer(const RotateAndStoreArguments& a)
      : kv_(static_cast<uint16_t*>(a.kv)), layout_{a.block_stride, a.block_size, a.head_dim} {}

  template <class Key>
  void write_key(Slot slot, int64_t head, const Key& key) const {
    uint16_t* kv = layout_.head(kv_, slot.block, head);
    key([&](int64_t i, __m512 elements) { store_pairs(layout_.key(kv, slot.offset, i), elements); });
  }

  void write_value(Slot slot, int64_t head, const float* v) const {
    uint16_t* kv = layout_.head(kv_, slot.block, head);
    for (int64_t i = 0; i < layout_.head_dim; i += 16)
      store_half(layout_.value(kv, slot.offset, i), slot.offset % 2, load_float(v + i));
  }

 private:
  static void store_pairs(uint16_t* to, __m512 keys) {
    alignas(32) uint16_t elements[16];
    store_bfloat16(elements, keys);
    for (int i = 0; i < 8; ++i) std::memcpy(to + i * kPairStride, elements + i * 2, 4);
  }

  // Sixteen elements of one token, each beside the same element of its pair's other token.
  static void store_half(uint16_t* to, bool is_second, __m512 values) {
    const __m512i low = _mm512_cvtepu16_epi32(round_to_bfloat16(values));
    if (is_second)
      _mm512_mask_storeu_epi16(to - 1, 0xAAAAAAAA, _mm512_slli_epi32(low, 16));
    else
      _mm512_mask_storeu_epi16(to, 0x55555555, low);
  }

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
    key([&](int64_t, __m512 elements) { largest.add(elements); });
    layout_.key_scales(kv)[slot.offset] = largest.scale();
    const __m512 inverse = _mm512_set1_ps(inverse_of(largest.scale()));
    key([&](int64_t i, __m512 elements) {
      alignas(16) int8_t quantized[16];
      _mm_store_si128(reinterpret_cast<__m128i*>(quantized), quantize(elements, inverse));
      int8_t* to = layout_.key(kv, slot.offset) + i * kGroup;
      for (int lane = 0; lane < 16; ++lane) to[lane * kGroup] = quantized[lane];
    });
  }

  void write_value(Slot slot, int64_t head, const float* v) const {
    int8_t* kv = layout_.head(kv_, slot.block, head);
    Largest largest;
    for (int64_t i = 0; i < layout_.head_dim; i += 16) largest.add(load_float(v + i));
    layout_.value_scales(kv)[slot.offset] = largest.scale();
    const __m512 inverse = _mm512_set1_ps(inverse_of(largest.scale()));
    int8_t* to = layout_.value(kv, slot.offset);
    for (int64_t i = 0; i < layout_.head_dim; i += 16)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), quantize(load_float(v + i), inverse));
  }

 private:
  class Largest {
   public:
    void add(__m512 elements) {
      largest_ = _mm512_max_ps(largest_, _mm512_abs_ps(elements));
      nans_ |= _mm512_cmp_ps_mask(elements, elements, _CMP_UNORD_Q);  // which a maximum need not keep
    }
    float scale() const { return nans_ ? NAN : horizontal_max(largest_) / kLargestInt8; }

   private:
    __m512 largest_ = _mm512_setzero_ps();
    __mmask16 nans_ = 0;
  };

  static __m128i quantize(__m512 elements, __m512 inverse) {
    return _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(elements, inverse)));
  }

  int8_t* const kv_;
  const Int8Layout layout_;
};

template <class Writer>
void rotate_and_store(const void* words, const Context& context) {
  RotateAndStore<Rotation512, Writer>(arguments<RotateAndStoreArguments>(words), context.step).run(context.pool);
}

}  // namespace
}  // namespace headrace
