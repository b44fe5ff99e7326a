// What becomes of sums over quantized weights, and the float arithmetic that takes, in vectors of the compiler's
// own and without fused operations: all instruction sets agree to the bit.
#pragma once
#include <cstring>

#include "linear.h"

namespace headrace {

// Nothing below may be shared between source files: each has it compiled for its own instruction set.
namespace {

inline float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

inline uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

// x + kRounder has the integer nearest to x in its last bits, of two the even one.
constexpr float kRounder = 12582912.0f;
constexpr uint32_t kRounderBits = 0x4B400000;

// Sixteen at a time, in the compiler's own vectors: what it makes of loops is left to no chance.
constexpr int kLanes = 16;
typedef float Floats __attribute__((vector_size(kLanes * sizeof(float))));
typedef uint32_t Words __attribute__((vector_size(kLanes * sizeof(uint32_t))));
typedef int32_t Integers __attribute__((vector_size(kLanes * sizeof(int32_t))));
typedef uint16_t Halves __attribute__((vector_size(kLanes * sizeof(uint16_t))));

inline Floats floats_of(Words bits) { return reinterpret_cast<Floats>(bits); }
inline Words words_of(Floats x) { return reinterpret_cast<Words>(x); }
inline Floats load_floats(const float* x) {
  Floats v;
  std::memcpy(&v, x, sizeof v);
  return v;
}
inline Words choose(Words is_first, Words first, Words second) { return (is_first & first) | (~is_first & second); }

// 2^x within 3e-7 of it, relatively, for x from -125 to 125, and as at these bounds beyond them. x = n + f, where
// |f| <= 1/2: the polynomial is that of the Cephes library, without fused operations, which the portable kernels lack,
// and n is added to its exponent.
inline Floats power_of_two(Floats x) {
  const Words magnitude = words_of(x) & 0x7FFFFFFFu, bound = Words{} + 0x42FA0000u;  // 125
  const Words bounded = choose(reinterpret_cast<Words>(magnitude < bound), magnitude, bound);
  x = floats_of(bounded | (words_of(x) & 0x80000000u));
  const Floats shifted = x + kRounder;
  const Floats f = x - (shifted - kRounder);
  Floats p = f * 1.535336188319500e-4f + 1.339887440266574e-3f;
  p = p * f + 9.618437357674640e-3f;
  p = p * f + 5.550332471162809e-2f;
  p = p * f + 2.402264791363012e-1f;
  p = p * f + 6.931472028550421e-1f;
  p = p * f + 1.0f;
  return floats_of(words_of(p) + (words_of(shifted) << 23));
}

// x * sigmoid(x), and GELU's form with tanh, which is x * sigmoid(2 u): u = sqrt(2 / pi) * (x + 0.044715 x^3).
inline Floats activate(Floats x, bool is_gelu) {
  constexpr float kLog2E = 1.44269504f;
  const Floats exponent =
      is_gelu ? x * (-1.59576912f * kLog2E) * (x * x * 0.044715f + 1.0f) : x * -kLog2E;
  return x / (1.0f + power_of_two(exponent));
}

// To the nearest bfloat16, of two the even one.
inline Halves round_floats(Floats x) {
  const Words bits = words_of(x);
  const Words rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const auto is_nan = reinterpret_cast<Words>((bits & 0x7FFFFFFFu) > 0x7F800000u);
  return __builtin_convertvector(choose(is_nan, Words{} + 0x7FC0u, rounded), Halves);
}

inline void store_floats(Floats values, const LinearArguments& a, int64_t row, int64_t column) {
  const int64_t at = row * a.out_stride + column;
  if (a.out_kind == kFloat) {
    std::memcpy(static_cast<float*>(a.out) + at, &values, sizeof values);
  } else {
    const Halves rounded = round_floats(values);
    std::memcpy(static_cast<uint16_t*>(a.out) + at, &rounded, sizeof rounded);
  }
}

// Writes what a row of x and the `half`-th half of a panel give, from their sums.
inline void finish_half(Floats first, Floats second, const LinearArguments& a, int64_t row, int64_t half) {
  if (a.bias) {
    first += load_floats(a.bias + half * kHalf);
    second += load_floats(a.bias + half * kHalf + kLanes);
  }
  if (a.epilogue == kPlain) {
    store_floats(first, a, row, half * kHalf);
    store_floats(second, a, row, half * kHalf + kLanes);
  } else {
    store_floats(activate(first, a.epilogue == kGeluGated) * second, a, row, half * kGates);
  }
}

}  // namespace
}  // namespace headrace
