// What becomes of sums over quantized weights, and the float arithmetic that takes, in vectors of the compiler's
// own and without fused operations: all instruction sets agree to the bit.
#pragma once
#include <cstring>

#include "linear.h"
#ifdef __AVX512BF16__
#include "vector512.h"
#endif

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

// In the compiler's own vectors: what it makes of loops is left to no chance. Of vectors wider than the registers it
// computes conditions one element at a time.
#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
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

// 2^x within 3e-7 of it, relatively, for x from -125 to 125, and as at these bounds beyond them; of a NaN anything.
// x = n + f, where |f| <= 1/2: a polynomial of least error, without fused operations, which the portable kernels lack,
// and n is added to its exponent.
inline Floats power_of_two(Floats x) {
  const Floats bound = Floats{} + 125.0f;
  x = x < bound ? x : bound;
  x = x > -bound ? x : -bound;
  const Floats shifted = x + kRounder;
  const Floats f = x - (shifted - kRounder);
  Floats p = f * 1.3264727e-3f + 9.671513e-3f;
  p = p * f + 5.5507336e-2f;
  p = p * f + 2.4022242e-1f;
  p = p * f + 6.93147e-1f;
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

// To the nearest bfloat16, of two the even one, as the processor's own instruction does: what is smaller than any
// normal number becomes a zero.
inline Halves round_floats(Floats x) {
#ifdef __AVX512BF16__
  return reinterpret_cast<Halves>(_mm512_cvtneps_pbh(reinterpret_cast<__m512>(x)));
#else
  const Words bits = words_of(x), magnitude = bits & 0x7FFFFFFFu, sign = bits & 0x80000000u;
  const auto is_nan = reinterpret_cast<Words>(magnitude > 0x7F800000u);
  const auto is_normal = reinterpret_cast<Words>(magnitude >= 0x00800000u);
  const Words rounded = choose(is_nan, bits | 0x400000u, bits + 0x7FFFu + ((bits >> 16) & 1u));
  return __builtin_convertvector(choose(is_normal, rounded, sign) >> 16, Halves);
#endif
}

inline void store_floats(Floats values, int64_t out_kind, uint8_t* out) {
  if (out_kind == kFloat) {
    std::memcpy(out, &values, sizeof values);
  } else {
    const Halves rounded = round_floats(values);
    std::memcpy(out, &rounded, sizeof rounded);
  }
}

// Writes what a row of x and half a panel give. `sums(i)` are those of kLanes columns from the i-th on; `bias` is of
// the half panel, or null.
template <class Sums>
inline void finish_half(const Sums& sums, const float* bias, int64_t epilogue, int64_t out_kind, uint8_t* out) {
  const int64_t element = out_kind == kFloat ? sizeof(float) : sizeof(uint16_t);
  const auto biased = [&](int64_t i) { return bias ? sums(i) + load_floats(bias + i) : sums(i); };
  if (epilogue == kPlain) {
    for (int64_t i = 0; i < kHalf; i += kLanes) store_floats(biased(i), out_kind, out + i * element);
  } else {
    for (int64_t i = 0; i < kGates; i += kLanes)
      store_floats(activate(biased(i), epilogue == kGeluGated) * biased(kGates + i), out_kind, out + i * element);
  }
}

template <class Sums>
inline void finish_half(const Sums& sums, const LinearArguments& a, int64_t row, int64_t half) {
  const Destination to(a, row, half);
  finish_half(sums, to.bias, a.epilogue, a.out_kind, to.out);
}

}  // namespace
}  // namespace headrace
