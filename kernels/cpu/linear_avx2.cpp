// Linear layers on AVX2: products of floats, to which rows of x are widened once, and the weight as it is read.
#include "bfloat16_panels.h"
#include "products256.h"
#include "row_groups.h"
#include "scratch.h"

namespace headrace {
namespace {

constexpr int64_t kVectors = kHalf / 8;
constexpr int64_t kPrefetchedAhead = 2 * kStep;

// Rows of x in float, in groups of kMostRows, the last of what is left: [k][rows of the group].
float* widen_rows(const LinearArguments& a, int64_t num_rows, Pool& pool) {
  auto* floats = reinterpret_cast<float*>(scratch(Scratch::kActivations, num_rows * a.k * int64_t{sizeof(float)}));
  pool.run(divide_up(num_rows, kMostRows), [&](int64_t group) {
    const int64_t row = group * kMostRows, in_group = std::min<int64_t>(kMostRows, num_rows - row);
    widen_side_by_side(a.x + row * a.x_stride, a.x_stride, in_group, a.k, floats + row * a.k);
  });
  return floats;
}

// Writes what a row of x and half a panel give, from their sums.
void finish_half(const float* half_sums, const LinearArguments& a, const Destination& to) {
  __m256 sums[kVectors];
  for (int i = 0; i < kVectors; ++i) {
    sums[i] = load_float(half_sums + i * 8);
    if (to.bias) sums[i] = _mm256_add_ps(sums[i], load_float(to.bias + i * 8));
  }
  const auto store = [&](int i, __m256 v) {
    if (a.out_kind == kFloat) return store_float(reinterpret_cast<float*>(to.out) + i * 8, v);
    store_bfloat16(reinterpret_cast<uint16_t*>(to.out) + i * 8, v);
  };
  if (a.epilogue == kPlain) {
    for (int i = 0; i < kVectors; ++i) store(i, sums[i]);
  } else {
    for (int i = 0; i < kVectors / 2; ++i)
      store(i, _mm256_mul_ps(a.epilogue == kSiluGated ? silu(sums[i]) : gelu(sums[i]), sums[kVectors / 2 + i]));
  }
}

// sums [kRows, 32] of a group and half a panel.
template <int kRows>
void multiply_half(const float* x, int64_t k, const uint16_t* weight, float* sums) {
  constexpr int kTiles = tiles_together<kRows>();
  for (int tile = 0; tile < 2; tile += kTiles) {
    Sums<kRows, 2 * kTiles> total;
    const uint16_t* step = weight + tile * kTile;
    for (int64_t column = 0; column < k; column += kStepColumns, step += kStep)
      for (int64_t pair = 0; pair < kStepColumns / 2; ++pair) {
        for (int i = 0; i < kTiles; ++i)
          _mm_prefetch(reinterpret_cast<const char*>(step + kPrefetchedAhead + i * kTile + pair * kPairOfTile),
                       _MM_HINT_T0);
        const float* both = x + (column + 2 * pair) * kRows;
        total.add([&](int i) { return load_pairs(step + i / 2 * kTile + pair * kPairOfTile + i % 2 * 16); },
                  [&](int row) { return both + row; }, [&](int row) { return both + kRows + row; });
      }
    total.store(sums + tile * kTileColumns, kHalf);
  }
}

template <int kRows>
void multiply_rows(const LinearArguments& a, const float* x, int64_t row, int64_t half) {
  float sums[kRows * kHalf];
  multiply_half<kRows>(x + row * a.k, a.k, half_panel(a.weight, a.k, half), sums);
  Destination to(a, row, half);
  for (int i = 0; i < kRows; ++i, to.out += to.row_bytes) finish_half(sums + i * kHalf, a, to);
}

void linear_bf16(const void* words, const Context& context) {
  const auto& a = arguments<LinearArguments>(words);
  const int64_t num_rows = num_rows_of(a.extent, context.step);
  const float* x = widen_rows(a, num_rows, context.pool);
  share_row_groups(a, num_rows, a.k * int64_t{sizeof(float)}, context.pool,
                   [&](auto rows, int64_t row, int64_t half) { multiply_rows<rows>(a, x, row, half); });
}

}  // namespace

extern const Entry kLinearAvx2[] = {{"linear_bf16", linear_bf16}, {nullptr, nullptr}};

}  // namespace headrace
