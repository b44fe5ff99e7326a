// What becomes of a row's sums over quantized weights, and the float arithmetic that takes, in plain C++ without fused
// operations: all instruction sets agree to the bit.
#pragma once
#include <algorithm>
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

// Within 3e-7 of exp(x), relatively, for x from -87 to 87, and as at these bounds beyond them. For the method see
// vector512.h, but without fused operations, which the portable kernels lack.
inline float exponential(float x) {
  // The bound for the magnitude alone, as an integer: of two bounds for x the compiler makes branches.
  const uint32_t magnitude = std::min(bits_of(x) & 0x7FFFFFFF, uint32_t{0x42AE0000});  // 87
  x = float_of(magnitude | (bits_of(x) & 0x80000000));
  const float shifted = x * 1.44269504f + kRounder;
  const float n = shifted - kRounder;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * (r * r) + r) + 1.0f;
  return p * float_of((bits_of(shifted) - kRounderBits + 127) << 23);
}

// x * sigmoid(x), and GELU's form with tanh, which is x * sigmoid(2 u): u = sqrt(2 / pi) * (x + 0.044715 x^3).
inline float activate(float x, bool is_gelu) {
  const float z = is_gelu ? x * -1.59576912f * (x * x * 0.044715f + 1.0f) : -x;
  return x / (1.0f + exponential(z));
}

inline uint16_t bfloat16_of(float x) {
  const uint32_t bits = bits_of(x);
  const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  return static_cast<uint16_t>((bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC0 : rounded);
}

template <int kColumns>
inline void store_row(const float* values, const LinearArguments& a, int64_t row, int64_t panel) {
  const int64_t at = row * a.out_stride + panel * kColumns;
  if (a.out_kind == kFloat) {
    std::memcpy(static_cast<float*>(a.out) + at, values, kColumns * sizeof(float));
    return;
  }
  uint16_t rounded[kColumns];
  for (int i = 0; i < kColumns; ++i) rounded[i] = bfloat16_of(values[i]);
  std::memcpy(static_cast<uint16_t*>(a.out) + at, rounded, sizeof rounded);
}

// Writes one row of the result in the columns of `panel`, from its sums, which it changes. Where they are gated the first
// half are gates.
template <int kSums>
inline void finish_row(float* sums, const LinearArguments& a, int64_t row, int64_t panel) {
  if (a.bias)
    for (int i = 0; i < kSums; ++i) sums[i] += a.bias[panel * kSums + i];
  if (a.epilogue == kPlain) return store_row<kSums>(sums, a, row, panel);
  constexpr int kHalf = kSums / 2;
  const bool is_gelu = a.epilogue == kGeluGated;
  for (int i = 0; i < kHalf; ++i) sums[i] = activate(sums[i], is_gelu) * sums[kHalf + i];
  store_row<kHalf>(sums, a, row, panel);
}

}  // namespace
}  // namespace headrace
