// Products of a few rows, in float, with pairs of bfloat16, eight pairs at a time: as many as the registers hold.
#pragma once
#include <cstdint>

#include "vector256.h"

namespace headrace {
namespace {

// The sums of kRows rows and 8 * kVectors columns. Of the 16 registers 12 suffice for six rows and
// a tile of 16 columns.
template <int kRows, int kVectors>
struct Sums {
  __m256 total[kRows][kVectors];

  Sums() {
    for (auto& row : total)
      for (__m256& sum : row) sum = _mm256_setzero_ps();
  }

  Sums(const float* sums, int64_t stride) {
    for (int row = 0; row < kRows; ++row)
      for (int i = 0; i < kVectors; ++i) total[row][i] = load_float(sums + row * stride + i * 8);
  }

  // Adds first[row] * pair.first + second[row] * pair.second, one after the other: so a row's sums do not depend on how
  // many rows there are.
  template <class Pairs, class First, class Second>
  void add(const Pairs& pairs, const First& first, const Second& second) {
    __m256 columns[kVectors];
    for (int i = 0; i < kVectors; ++i) columns[i] = first_of(pairs(i));
    add_columns(columns, first);
    for (int i = 0; i < kVectors; ++i) columns[i] = second_of(pairs(i));
    add_columns(columns, second);
  }

  void store(float* sums, int64_t stride) const {
    for (int row = 0; row < kRows; ++row)
      for (int i = 0; i < kVectors; ++i) store_float(sums + row * stride + i * 8, total[row][i]);
  }

 private:
  template <class Row>
  void add_columns(const __m256 (&columns)[kVectors], const Row& of_row) {
    for (int row = 0; row < kRows; ++row) {
      const __m256 x = _mm256_broadcast_ss(of_row(row));
      for (int i = 0; i < kVectors; ++i) total[row][i] = _mm256_fmadd_ps(x, columns[i], total[row][i]);
    }
  }
};

// Tiles of 16 columns for so many rows.
template <int kRows>
constexpr int tiles_together() {
  return kRows <= 3 ? 2 : 1;
}

// out [columns][rows] of x [rows, columns] with `stride` elements from one row to the next.
inline void widen_side_by_side(const uint16_t* x, int64_t stride, int64_t num_rows, int64_t num_columns, float* out) {
  const auto bits = reinterpret_cast<uint32_t*>(out);
  for (int64_t row = 0; row < num_rows; ++row)
    for (int64_t i = 0; i < num_columns; ++i) bits[i * num_rows + row] = uint32_t{x[row * stride + i]} << 16;
}

}  // namespace
}  // namespace headrace
