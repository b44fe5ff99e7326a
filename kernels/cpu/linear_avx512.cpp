// Linear layers on AVX512's bfloat16 products: six rows by the 64 columns of a panel, in 24 registers.
#include <cstring>

#include "bfloat16_panels.h"
#include "epilogue512.h"

namespace headrace {
namespace {

constexpr int64_t kPrefetchedAhead = 2 * kStep;  // in each half of a panel
constexpr int64_t kMaxRows = 6;

// In assembly because GCC 12 keeps the sums of the intrinsic in memory.
inline __m512 add_products(__m512 sums, __m512i x, __m512i weight) {
  __asm__("vdpbf16ps %2, %1, %0" : "+v"(sums) : "v"(x), "v"(weight));
  return sums;
}

inline __m512i broadcast_pair(const uint16_t* x) {
  int32_t pair;
  std::memcpy(&pair, x, sizeof pair);
  return _mm512_set1_epi32(pair);
}

// sums [2, kRows, 32] of so many rows by the halves of a panel.
template <int kRows>
void multiply_panel(const LinearArguments& a, const uint16_t* x, const uint16_t* weight, float* sums) {
  const int64_t half = kHalf * a.k;  // elements
  __m512 total[kRows][4];
  for (auto& row : total)
    for (__m512& columns : row) columns = _mm512_setzero_ps();
  for (int64_t k = 0; k < a.k; k += 2) {
    const uint16_t* pair = weight + k / kStepColumns * kStep + k % kStepColumns / 2 * kPairOfTile;
    __m512i columns[4];
    for (int j = 0; j < 4; ++j) {
      const uint16_t* column = pair + j / 2 * half + j % 2 * kTile;
      columns[j] = _mm512_loadu_si512(column);
      _mm_prefetch(reinterpret_cast<const char*>(column + kPrefetchedAhead), _MM_HINT_T0);
    }
    for (int r = 0; r < kRows; ++r) {
      const __m512i both = broadcast_pair(x + r * a.x_stride + k);
      for (int j = 0; j < 4; ++j) total[r][j] = add_products(total[r][j], both, columns[j]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int j = 0; j < 4; ++j) store_float(sums + (j / 2 * kRows + r) * kHalf + j % 2 * kTileColumns, total[r][j]);
}

template <int kRows>
void multiply_rows(const LinearArguments& a, int64_t row, int64_t panel) {
  alignas(64) float sums[kRows * kPanel];
  multiply_panel<kRows>(a, a.x + row * a.x_stride, half_panel(a.weight, a.k, 2 * panel), sums);
  for (int half = 0; half < 2; ++half) {
    const float* of_half = sums + half * kRows * kHalf;
    Destination to(a, row, 2 * panel + half);
    for (int r = 0; r < kRows; ++r, of_half += kHalf, to.out += to.row_bytes)
      finish_half(of_half, to.bias, a.epilogue, a.out_kind, a.n >= kPastCachesColumns, to.out);
  }
}

using MultiplyRows = void (*)(const LinearArguments&, int64_t row, int64_t panel);
constexpr MultiplyRows kMultiplyRows[kMaxRows + 1] = {nullptr,          multiply_rows<1>, multiply_rows<2>,
                                                      multiply_rows<3>, multiply_rows<4>, multiply_rows<5>,
                                                      multiply_rows<6>};

void linear_bf16(const void* words, const Context& context) {
  const auto& a = arguments<LinearArguments>(words);
  const int64_t num_rows = num_rows_of(a.extent, context.step);
  context.pool.run(a.n / kPanel, [&](int64_t panel) {
    for (int64_t row = 0; row < num_rows; row += kMaxRows) {
      const int64_t left = num_rows - row;
      kMultiplyRows[left < kMaxRows ? left : kMaxRows](a, row, panel);
    }
  });
}

}  // namespace

extern const Entry kLinearAvx512[] = {{"linear_bf16", linear_bf16}, {nullptr, nullptr}};

}  // namespace headrace
