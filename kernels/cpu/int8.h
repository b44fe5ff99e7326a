// What the int8 kernels of every instruction set have in common: the layout of the weights, how rows of x are
// quantized, and what is computed in float. An integer sum is exact in any order, and the float arithmetic is here and
// in epilogue.h, once, in plain C++: so all instruction sets agree to the bit.
//
// x[r] is about x_scale[r] * q[r], with q[r] from -127 to 127, so
// out[r, n] = epilogue(sum over k of q[r, k] * weight[n, k], * x_scale[r] * weight_scale[n] + bias[n]).
#pragma once
#include <algorithm>

#include "epilogue.h"
#include "scratch.h"

namespace headrace {

constexpr int64_t kQuad = 4;           // neighbours along k that one lane of a product adds up
constexpr int64_t kInt8Block = 64;     // columns of k that are packed, and computed, together
constexpr int64_t kInt8TileRows = 16;  // rows in a tile, of the weight and of x
constexpr int64_t kInt8Tile = kInt8TileRows * kInt8Block;  // bytes

// As in epilogue.h, each source file has its own of what follows.
namespace {

// 64 rows of the weight: [2 halves][k / 64][2 tiles][16 quads of k][16 rows][4], then what belongs to each row.
struct Int8Panel {
  const int8_t* tiles;
  const float* scales;     // [64]
  const int32_t* offsets;  // [64]: 128 * the sum of the row, by which products with x + 128 are too large
  int64_t half_bytes;

  const int8_t* tile(int64_t half, int64_t block, int64_t i) const {
    return tiles + half * half_bytes + (2 * block + i) * kInt8Tile;
  }
};

inline int64_t int8_panel_bytes(int64_t k) { return kPanel * (k + 8); }

inline Int8Panel int8_panel(const uint8_t* weight, int64_t k, int64_t i) {
  const uint8_t* panel = weight + i * int8_panel_bytes(k);
  const uint8_t* ends = panel + kPanel * k;
  return {reinterpret_cast<const int8_t*>(panel), reinterpret_cast<const float*>(ends),
          reinterpret_cast<const int32_t*>(ends + kPanel * 4), kHalf * k};
}

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

// kLanes sums, times the scales of their rows and that of x.
inline Floats scaled(const int32_t* sums, float x_scale, const float* scales) {
  Integers v;
  std::memcpy(&v, sums, sizeof v);
  return __builtin_convertvector(v, Floats) * x_scale * load_floats(scales);
}

// From the integer sums of a row of x and the `half`-th half of a panel, whose rows have `scales`, to what is stored.
inline void finish_sums(const int32_t* sums, float x_scale, const float* scales, const LinearArguments& a, int64_t row,
                        int64_t half) {
  finish_half([&](int64_t i) { return scaled(sums + i, x_scale, scales + i); }, a, row, half);
}

// Of both halves of a panel, side by side.
inline void finish_panel(const int32_t* sums, float x_scale, const float* scales, const LinearArguments& a, int64_t row,
                         int64_t panel) {
  finish_sums(sums, x_scale, scales, a, row, 2 * panel);
  finish_sums(sums + kHalf, x_scale, scales + kHalf, a, row, 2 * panel + 1);
}

}  // namespace
}  // namespace headrace
