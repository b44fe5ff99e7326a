// The inner loops of sampling without instructions of one machine: plain loops, which the compiler turns into vectors.
#pragma once
#include <cmath>
#include <cstring>

#include "sampling.h"

namespace headrace {
namespace HEADRACE_SET {

constexpr int64_t kLanes = 16;  // side by side; in one order whatever vectors the compiler makes of them

inline float larger(float a, float b) { return a > b ? a : b; }

inline float maximum(const float* x, int64_t n) {
  float lanes[kLanes];
  for (float& lane : lanes) lane = -INFINITY;
  int has_nan = 0;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) {
      lanes[j] = larger(x[i + j], lanes[j]);
      has_nan |= x[i + j] != x[i + j];
    }
  }
  for (; i < n; ++i) {
    lanes[0] = larger(x[i], lanes[0]);
    has_nan |= x[i] != x[i];
  }
  for (int64_t j = 1; j < kLanes; ++j) lanes[0] = larger(lanes[j], lanes[0]);
  return has_nan ? NAN : lanes[0];
}

inline void group_maxima(const float* x, int64_t n, float* maxima) {
  for (int64_t j = 0; j < kGroups; ++j) maxima[j] = -INFINITY;
  for (; n > 0; x += kGroups, n -= kGroups) {
    const int64_t size = n < kGroups ? n : kGroups;
    for (int64_t j = 0; j < size; ++j) maxima[j] = larger(x[j], maxima[j]);
  }
}

// exp(x) within 2e-7 of it for x from kLowestExponent up to 0, exactly 1 at 0.
// x = n ln 2 + r, where |r| <= ln 2 / 2: the polynomial is that of the Cephes library.
inline float exponential(float x) {
  constexpr float kToNearest = 12582912.0f;  // 1.5 * 2^23: added, it leaves no fraction
  const float shifted = x * 1.44269504f + kToNearest;
  const float n = shifted - kToNearest;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;  // ln 2 in two parts, the first exact times n
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = r * r * p + r + 1.0f;
  const uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23;  // of 2^n
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return p * power;
}

inline double sum_of(const double* lanes) {
  double sum = 0.0;
  for (int64_t j = 0; j < kLanes; ++j) sum += lanes[j];
  return sum;
}

inline double weigh(const float* x, int64_t n, const Weighing& weighing, float* weights) {
  const float largest = weighing.largest, temperature = weighing.temperature;
  const float floor = larger(weighing.floor, kLowestExponent);
  for (int64_t i = 0; i < n; ++i) {
    const float exponent = (x[i] - largest) / temperature;
    const float weight = exponential(larger(exponent, kLowestExponent));
    weights[i] = exponent < floor ? 0.0f : weight;
  }
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int64_t j = 0; j < kLanes; ++j) lanes[j] += weights[i + j];
  for (; i < n; ++i) lanes[i % kLanes] += weights[i];
  return sum_of(lanes);
}

inline double sum_from(const float* x, int64_t n, float low) {
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int64_t j = 0; j < kLanes; ++j) lanes[j] += x[i + j] < low ? 0.0f : x[i + j];
  for (; i < n; ++i) lanes[i % kLanes] += x[i] < low ? 0.0f : x[i];
  return sum_of(lanes);
}

inline int64_t keep(const float* x, int64_t n, float low, float high, float* kept) {
  int64_t num_kept = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float value = x[i];
    kept[num_kept] = value;  // overwritten by the next, if it is not to be kept
    num_kept += (value >= low) & (value < high);
  }
  return num_kept;
}

constexpr SamplingLoops kLoops = {maximum, group_maxima, weigh, sum_from, keep};

inline void greedy(const void* words, const Context& context) {
  greedy_with(kLoops, arguments<GreedyArguments>(words), context.pool);
}

inline void draw(const void* words, const Context& context) {
  draw_with(kLoops, arguments<DrawArguments>(words), context.pool);
}

}  // namespace HEADRACE_SET
}  // namespace headrace
