#include <cmath>

#include "sampling.h"
#include "vector512.h"

namespace headrace {
namespace {

constexpr int64_t kLanes = 16;

__m512 below_all() { return _mm512_set1_ps(-INFINITY); }

// Missing lanes are `rest`.
__m512 load_or(__m512 rest, const float* x, __mmask16 lanes) { return _mm512_mask_loadu_ps(rest, lanes, x); }

float maximum(const float* x, int64_t n) {
  constexpr int64_t kVectors = 4;  // side by side, so that none waits for the one before it
  __m512 largest[kVectors] = {below_all(), below_all(), below_all(), below_all()};
  __mmask16 nans = 0;
  int64_t i = 0;
  for (; i + kVectors * kLanes <= n; i += kVectors * kLanes) {
    for (int64_t j = 0; j < kVectors; j += 2) {
      const __m512 a = load_float(x + i + j * kLanes), b = load_float(x + i + (j + 1) * kLanes);
      nans |= _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q);
      largest[j] = _mm512_max_ps(largest[j], a), largest[j + 1] = _mm512_max_ps(largest[j + 1], b);
    }
  }
  for (; i < n; i += kLanes) {
    const __m512 v = load_or(below_all(), x + i, first_lanes(n - i));
    nans |= _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    largest[0] = _mm512_max_ps(largest[0], v);
  }
  const __m512 two = _mm512_max_ps(largest[0], largest[1]), others = _mm512_max_ps(largest[2], largest[3]);
  return nans ? NAN : horizontal_max(_mm512_max_ps(two, others));
}

void group_maxima(const float* x, int64_t n, float* maxima) {
  for (int64_t j = 0; j < kGroups; j += kLanes) store_float(maxima + j, below_all());
  for (int64_t i = 0; i < n; i += kLanes) {
    float* group = maxima + i % kGroups;
    store_float(group, _mm512_max_ps(load_float(group), load_or(below_all(), x + i, first_lanes(n - i))));
  }
}

__m512d lower_doubles(__m512 v) { return _mm512_cvtps_pd(lower_half(v)); }
__m512d upper_doubles(__m512 v) { return _mm512_cvtps_pd(upper_half(v)); }

// Sums in 16 lanes; always added up in one order.
struct Sum {
  __m512d lower = _mm512_setzero_pd(), upper = _mm512_setzero_pd();

  void add(__m512 v) {
    lower = _mm512_add_pd(lower, lower_doubles(v));
    upper = _mm512_add_pd(upper, upper_doubles(v));
  }

  double total() const {
    double lanes[8], sum = 0.0;
    _mm512_storeu_pd(lanes, _mm512_add_pd(lower, upper));
    for (double lane : lanes) sum += lane;
    return sum;
  }
};

double weigh(const float* x, int64_t n, const Weighing& weighing, float* weights) {
  const __m512 largest = _mm512_set1_ps(weighing.largest), temperature = _mm512_set1_ps(weighing.temperature);
  const __m512 floor = _mm512_max_ps(_mm512_set1_ps(weighing.floor), _mm512_set1_ps(kLowestExponent));
  Sum sum;
  for (int64_t i = 0; i < n; i += kLanes) {
    const __mmask16 lanes = first_lanes(n - i);
    const __m512 exponent = _mm512_div_ps(_mm512_sub_ps(load_or(below_all(), x + i, lanes), largest), temperature);
    const __mmask16 counts = _mm512_cmp_ps_mask(exponent, floor, _CMP_GE_OQ);
    const __m512 weight = _mm512_maskz_mov_ps(counts, vexp(_mm512_max_ps(exponent, floor)));
    store_float(weights + i, weight, lanes);
    sum.add(weight);
  }
  return sum.total();
}

double sum_from(const float* x, int64_t n, float low) {
  const __m512 bound = _mm512_set1_ps(low);
  Sum sum;
  for (int64_t i = 0; i < n; i += kLanes) {
    const __m512 v = load_float(x + i, first_lanes(n - i));
    sum.add(_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(v, bound, _CMP_GE_OQ), v));
  }
  return sum.total();
}

int64_t keep(const float* x, int64_t n, float low, float high, float* kept) {
  const __m512 from = _mm512_set1_ps(low), to = _mm512_set1_ps(high);
  int64_t num_kept = 0;
  for (int64_t i = 0; i < n; i += kLanes) {
    const __mmask16 lanes = first_lanes(n - i);
    const __m512 v = load_float(x + i, lanes);
    const __mmask16 is_low_enough = _mm512_mask_cmp_ps_mask(lanes, v, to, _CMP_LT_OQ);
    const __mmask16 stays = _mm512_mask_cmp_ps_mask(is_low_enough, v, from, _CMP_GE_OQ);
    if (!stays) continue;
    store_float(kept + num_kept, _mm512_maskz_compress_ps(stays, v));  // a store of only some lanes is slow on some
    num_kept += __builtin_popcount(stays);
  }
  return num_kept;
}

constexpr SamplingLoops kLoops = {maximum, group_maxima, weigh, sum_from, keep};

void greedy(const void* words, const Context& context) {
  greedy_with(kLoops, arguments<GreedyArguments>(words), context.pool);
}

void draw(const void* words, const Context& context) {
  draw_with(kLoops, arguments<DrawArguments>(words), context.pool);
}

}  // namespace

extern const Entry kSamplingAvx512[] = {{"greedy", greedy}, {"draw", draw}, {nullptr, nullptr}};

}  // namespace headrace
