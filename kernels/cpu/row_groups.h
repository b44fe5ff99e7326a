// Rows of x, a few at a time, as many as the registers of AVX2 have room for, by half a panel of the weight.
#pragma once
#include <algorithm>
#include <type_traits>

#include "linear.h"

namespace headrace {
namespace {

constexpr int kMostRows = 6;
constexpr int64_t kBlockBytes = int64_t{256} << 10;  // of rows of x, which stay in the second-level cache of a core

// Calls f with a number of rows, up to kMostRows, as a constant.
template <class F>
void with_rows(int64_t num_rows, const F& f) {
  switch (num_rows) {
    case 1: return f(std::integral_constant<int, 1>());
    case 2: return f(std::integral_constant<int, 2>());
    case 3: return f(std::integral_constant<int, 3>());
    case 4: return f(std::integral_constant<int, 4>());
    case 5: return f(std::integral_constant<int, 5>());
    case 6: return f(std::integral_constant<int, 6>());
  }
}

// multiply(number of rows, first row, half) for all rows and halves: every half with one block of rows, then with the
// next, since rows that are in a core's cache cost less than the weight does again.
template <class Multiply>
void share_row_groups(const LinearArguments& a, int64_t num_rows, int64_t row_bytes, Pool& pool,
                      const Multiply& multiply) {
  const int64_t num_halves = a.n / kHalf;
  const int64_t in_block = std::max<int64_t>(1, kBlockBytes / (row_bytes * kMostRows)) * kMostRows;
  pool.run(divide_up(num_rows, in_block) * num_halves, [&](int64_t task) {
    const int64_t begin = task / num_halves * in_block, end = std::min(num_rows, begin + in_block);
    for (int64_t row = begin; row < end; row += kMostRows)
      with_rows(std::min<int64_t>(kMostRows, end - row), [&](auto rows) { multiply(rows, row, task % num_halves); });
  });
}

}  // namespace
}  // namespace headrace
