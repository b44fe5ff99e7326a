// What comes before attention, in plain loops that a compiler turns into vectors of any width.
#pragma once
#include <cmath>

#include "attention_generic.h"
#include "rotate.h"

namespace headrace {
namespace {

struct GenericRotation {
  using Elements = float;
  static constexpr int64_t kLanes = 1;

  static float all(float x) { return x; }
  static float load(const float* x) { return *x; }
  static float load(const uint16_t* x) { return widen(*x); }
  static float multiply_add(float a, float b, float c) { return a * b + c; }
  static float multiply_subtract(float a, float b, float c) { return a * b - c; }

  static float sum_of_squares(const uint16_t* x, int64_t dim) {
    float squares = 0.0f;
    for (int64_t i = 0; i < dim; ++i) squares += load(x + i) * load(x + i);
    return squares;
  }

  static void store(uint16_t* to, float element) { *to = round_to_bfloat16(element); }
  static void store_key(uint16_t* to, float element) { *to = round_to_bfloat16(element); }
  static void store_value(uint16_t* to, bool /*is_second*/, float element) { *to = round_to_bfloat16(element); }

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

  static void store_together(int8_t* to, int8_t quant) { *to = quant; }
  static void store_apart(int8_t* to, int8_t quant) { *to = quant; }
};

}  // namespace
}  // namespace headrace
