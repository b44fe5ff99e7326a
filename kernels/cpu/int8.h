// What the int8 kernels of every instruction set have in common: the layout of the weights, how rows of x are
// quantized, and what is computed in float. An integer sum is exact in any order, and the float arithmetic is here,
// once, in loops that the compiler vectorizes: so all instruction sets agree to the bit.
//
// x[r] is about x_scale[r] * q[r], with q[r] from -127 to 127, so
// out[r, n] = epilogue(sum over k of q[r, k] * weight[n, k], * x_scale[r] * weight_scale[n] + bias[n]).
#pragma once
#include <algorithm>
#include <cstring>

#include "linear.h"

namespace headrace {

constexpr int64_t kQuad = 4;           // neighbours along k that one lane of a product adds up
constexpr int64_t kInt8Block = 64;     // columns of k that are packed, and computed, together
constexpr int64_t kInt8TileRows = 16;  // rows in a tile, of the weight and of x
constexpr int64_t kInt8Tile = kInt8TileRows * kInt8Block;  // bytes

// At least `num_bytes` of this thread's memory, on a cache line, kept for its next call. In int8_portable.cpp.
uint8_t* int8_scratch(int64_t num_bytes);

// Nothing below may be shared between source files: each has it compiled for its own instruction set.
namespace {

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// 64 rows of the weight: [k / 64][4 tiles][16 quads of k][16 rows][4], then what belongs to each row.
struct Int8Panel {
  const int8_t* tiles;
  const float* scales;     // [64]
  const int32_t* offsets;  // [64]: 128 * the sum of the row, by which products with x + 128 are too large
};

inline int64_t int8_panel_bytes(int64_t k) { return kPanel * (k + 8); }

inline Int8Panel int8_panel(const uint8_t* weight, int64_t k, int64_t i) {
  const uint8_t* panel = weight + i * int8_panel_bytes(k);
  const uint8_t* ends = panel + kPanel * k;
  return {reinterpret_cast<const int8_t*>(panel), reinterpret_cast<const float*>(ends),
          reinterpret_cast<const int32_t*>(ends + kPanel * 4)};
}

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

// q = x / scale in bytes or wider integers, plus `shift`; 64 columns of x become the first 64 of every `block_stride`.
template <class Integer>
inline float quantize_row(const uint16_t* x, int64_t k, int shift, Integer* q, int64_t block_stride) {
  constexpr uint16_t kNotFinite = 0x7F80, kTiny = 0x0D80;  // 2^-100: below it 127 / largest is not finite
  uint16_t largest = 0;
  for (int64_t i = 0; i < k; ++i) {
    const uint16_t magnitude = x[i] & 0x7FFF;
    largest = magnitude > largest ? magnitude : largest;
  }
  const bool is_usual = largest >= kTiny && largest < kNotFinite;
  const float range = float_of(static_cast<uint32_t>(largest) << 16);
  const float inverse = is_usual ? 127.0f / range : 0.0f;
  for (int64_t begin = 0; begin < k; begin += kInt8Block, q += block_stride) {
    for (int64_t i = 0; i < kInt8Block; ++i) {
      const uint32_t bits = is_usual ? static_cast<uint32_t>(x[begin + i]) << 16 : 0;
      const uint32_t rounded = bits_of(float_of(bits) * inverse + kRounder);
      q[i] = static_cast<Integer>(static_cast<int32_t>(rounded - kRounderBits) + shift);
    }
  }
  // A row with an infinity or a NaN is all NaN.
  return largest >= kNotFinite ? float_of(0x7FC00000) : is_usual ? range / 127.0f : 0.0f;
}

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

// From the integer sums of one row and the 64 rows of a panel to what is stored.
inline void finish_row(const int32_t* sums, float x_scale, const float* scales, const LinearArguments& a, int64_t row,
                       int64_t panel) {
  float values[kPanel];
  for (int i = 0; i < kPanel; ++i) values[i] = static_cast<float>(sums[i]) * x_scale * scales[i];
  if (a.bias)
    for (int i = 0; i < kPanel; ++i) values[i] += a.bias[panel * kPanel + i];
  if (a.epilogue == kPlain) return store_row<kPanel>(values, a, row, panel);
  constexpr int kHalf = kPanel / 2;
  const bool is_gelu = a.epilogue == kGeluGated;
  for (int i = 0; i < kHalf; ++i) values[i] = activate(values[i], is_gelu) * values[kHalf + i];
  store_row<kHalf>(values, a, row, panel);
}

}  // namespace
}  // namespace headrace
