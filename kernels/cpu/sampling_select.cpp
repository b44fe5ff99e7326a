#include "sampling_select.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace headrace {
namespace {

constexpr int64_t kFewEnoughToSort = 256;

bool is_greater(float a, float b) { return a > b; }

uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// At least k values are as large as the k-th largest of the groups' maxima, and not many more.
float bound_of(const SamplingLoops& loops, const float* x, int64_t n, int64_t k) {
  if (k > kGroups) return -INFINITY;
  float maxima[kGroups];
  loops.group_maxima(x, n, maxima);
  std::nth_element(maxima, maxima + k - 1, maxima + kGroups, is_greater);
  return maxima[k - 1];
}

}  // namespace

float kth_largest(const SamplingLoops& loops, const float* x, int64_t n, int64_t k, float* scratch) {
  const int64_t num_kept = loops.keep(x, n, bound_of(loops, x, n, k), INFINITY, scratch);
  std::nth_element(scratch, scratch + k - 1, scratch + num_kept, is_greater);
  return scratch[k - 1];
}

float nucleus_edge(const SamplingLoops& loops, float* weights, int64_t n, double total, double top_p) {
  const double wanted = std::max(top_p * total, std::numeric_limits<double>::min());  // one weight at least
  // Weights below (1 - top_p) / n of the total have less than 1 - top_p together, so the others suffice. Half of that
  // bound, for rounding: no row has its largest weight below it.
  float low = static_cast<float>(0.5 * (1.0 - top_p) / static_cast<double>(n) * total);
  float high = INFINITY;
  double mass = 0.0;  // of the weights from `high` upwards: less than wanted
  n = loops.keep(weights, n, low, high, weights);
  // Floats that are not negative are ordered as their bits are, so that the halves between two are found among bits.
  while (n > kFewEnoughToSort && bits_of(high) - bits_of(low) > 1) {
    const float middle = float_of(bits_of(low) + (bits_of(high) - bits_of(low)) / 2);
    const double mass_of_upper = mass + loops.sum_from(weights, n, middle);
    if (mass_of_upper < wanted) {
      mass = mass_of_upper, high = middle;
    } else {
      low = middle;
    }
    n = loops.keep(weights, n, low, high, weights);
  }
  if (n > kFewEnoughToSort) return low;  // they are all equal
  std::sort(weights, weights + n, is_greater);
  for (int64_t i = 0; i < n; ++i) {
    mass += weights[i];
    if (mass >= wanted) return weights[i];
  }
  return n > 0 ? weights[n - 1] : high;  // short of what is wanted by a rounding
}

}  // namespace headrace
