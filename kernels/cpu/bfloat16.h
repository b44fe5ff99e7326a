// One bfloat16 at a time, in plain C++. The file that includes this names its namespace, HEADRACE_SET, so that no two
// instruction sets share a function that one of them has compiled for itself.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace headrace {
namespace HEADRACE_SET {

// A bfloat16 is the upper half of a float.
inline float widen(uint16_t x) {
  const uint32_t bits = uint32_t{x} << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

// To the nearest, of two equally near to the even one; a NaN stays one.
inline uint16_t round_to_bfloat16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
  return static_cast<uint16_t>(x == x ? rounded : bits >> 16 | 0x40);
}

}  // namespace HEADRACE_SET
}  // namespace headrace
