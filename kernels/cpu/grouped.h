// What the kernels for weights quantized in groups along k have in common: how a weight lies in memory, how x is
// quantized to meet it, and how a task's results are stored.
//
// Of every 32 columns of x, q = x / scale from -127 to 127. A weight is scale * (quant - zero) or scale * quant - min,
// each for 32 columns (16, in the format with signed scales). The integer sums of a group are exact in any order, and
// they are added up in float, group after group, by the same fused operations everywhere: so neither the number of rows
// nor the instruction set changes a bit of a sum.
#pragma once
#include "epilogue.h"
#include "scratch.h"

namespace headrace {

// As in epilogue.h, each source file has its own of what follows.
namespace {

constexpr int kPanelRows = 32;   // of the weight, packed together: what the other formats call half a panel
constexpr int kColumnTile = 16;  // rows of the weight, columns of the result: a vector of float
constexpr int kPanelTiles = 2;
constexpr int kGroup = 32;  // columns of k
constexpr int kGroupQuads = kGroup / 4;
constexpr int kBlockRows = 16;   // rows of x that lie, and are computed, together

enum class Scales {
  kHalf,         // float16 [32], and a zero point in the middle of the quants' range
  kHalfAndZero,  // float16 [32], then the zero points [32]
  kSuper,        // of 8 groups: float16 [32], then signed factors of it for every 16 columns [16, 32]
  kSuperAndMin,  // of 8 groups: float16 of scales [32] and of minima [32], then the factors of both [8, 32] each
};

// A panel is a run of blocks along k, each a head with the scales and then the quants of its groups. These are
// nibbles [2 tiles][4][16 rows][4], lower ones of the quads (4 columns) 0, 2, 4 and 6 and upper ones of those between,
// and one plane [2 tiles][8 quads][16 rows * 4 bits] for each bit beyond; or, of 8 bits, signed bytes
// [2 tiles][8 quads][16 rows][4].
template <int bits, Scales scales>
struct Format {
  static constexpr int kBits = bits;
  static constexpr bool kHasZeros = scales == Scales::kHalfAndZero;
  static constexpr bool kHasMins = scales == Scales::kSuperAndMin;
  static constexpr bool kIsSuper = scales == Scales::kSuper || kHasMins;
  static constexpr int kZero = scales == Scales::kHalf || scales == Scales::kSuper ? 1 << (bits - 1) : 0;
  static constexpr int kPartColumns = scales == Scales::kSuper ? 16 : kGroup;  // columns of one scale
  static constexpr int kParts = kGroup / kPartColumns;
  static constexpr int kPartQuads = kPartColumns / 4;

  static constexpr int kBlockGroups = kIsSuper ? 8 : 1;
  static constexpr int kHalves = kPanelRows * 2;  // bytes of a float16 for each row
  static constexpr int kFactors = kHasMins ? 2 * kHalves : kHalves;  // where they begin
  static constexpr int kMinFactors = kFactors + kBlockGroups * kPanelRows;
  static constexpr int kHead = kHasMins    ? kMinFactors + kBlockGroups * kPanelRows
                               : kIsSuper  ? kFactors + kBlockGroups * kParts * kPanelRows
                               : kHasZeros ? kHalves + kPanelRows
                                           : kHalves;
  static constexpr int kPlanes = kPanelRows * kGroup / 2;  // where they begin
  static constexpr int kPlane = kPanelRows * kGroup / 8;   // bytes of one
  static constexpr int kQuants = kPanelRows * kGroup * bits / 8;  // bytes of a group
  static constexpr int64_t kBlock = kHead + kBlockGroups * kQuants;

  static int64_t panel_bytes(int64_t num_groups) { return num_groups / kBlockGroups * kBlock; }
  static const uint8_t* head(const uint8_t* panel, int64_t group) { return panel + group / kBlockGroups * kBlock; }
  static const uint8_t* quants(const uint8_t* panel, int64_t group) {
    return head(panel, group) + kHead + group % kBlockGroups * kQuants;
  }
};

using Q4 = Format<4, Scales::kHalf>;
using Q4Zero = Format<4, Scales::kHalfAndZero>;
using Q4K = Format<4, Scales::kSuperAndMin>;
using Q5 = Format<5, Scales::kHalf>;
using Q6K = Format<6, Scales::kSuper>;
using Q8 = Format<8, Scales::kHalf>;

// 32 columns of 16 rows of x.
struct Activations {
  int8_t quants[kBlockRows][kGroup];
  float scales[kBlockRows];
  float sums[kBlockRows];          // of the quants, for the zero points; for minima, times the scale
  int32_t offsets[2][kBlockRows];  // minus kZero times the sum of each part's quants, for unsigned weights
};
static_assert(sizeof(Activations) == 768);

// What the tasks of one call share.
struct Grouped {
  const LinearArguments& a;
  int64_t num_groups;
  Activations* x;  // [blocks of 16 rows][groups]

  Activations* block(int64_t row) const { return x + row / kBlockRows * num_groups; }
};

// From a row's scale and the sums of the quants of either half.
template <class F>
inline void set_sums(Activations& y, int row, float scale, int32_t first_sum, int32_t second_sum) {
  const int32_t sum = first_sum + second_sum;
  y.scales[row] = scale;
  y.sums[row] = static_cast<float>(sum) * (F::kHasMins ? scale : 1.0f);
  y.offsets[0][row] = -F::kZero * (F::kParts == 1 ? sum : first_sum);
  y.offsets[1][row] = -F::kZero * second_sum;
}

// How a group is rounded whose largest magnitude has these bits as a bfloat16.
struct Rounding {
  bool is_usual;
  float scale, inverse;

  explicit Rounding(uint16_t largest) {
    constexpr uint16_t kNotFinite = 0x7F80, kTiny = 0x0D80;  // 2^-100
    is_usual = largest >= kTiny && largest < kNotFinite;
    const float range = float_of(uint32_t{largest} << 16);
    inverse = is_usual ? 127.0f / range : 0.0f;
    // An infinity or a NaN makes the row's results NaN.
    scale = largest >= kNotFinite ? float_of(0x7FC00000) : is_usual ? range / 127.0f : 0.0f;
  }
};

// A group whose values are all too small to be divided by counts as zeros.
template <class F>
inline void quantize_group(const uint16_t* x, Activations& y, int row) {
  uint16_t largest = 0;
  for (int i = 0; i < kGroup; ++i) {
    const uint16_t magnitude = x[i] & 0x7FFF;
    largest = magnitude > largest ? magnitude : largest;
  }
  const Rounding rounding(largest);
  int8_t* quants = y.quants[row];
  for (int i = 0; i < kGroup; ++i) {
    const float value = float_of(rounding.is_usual ? uint32_t{x[i]} << 16 : 0) * rounding.inverse;
    quants[i] = static_cast<int8_t>(bits_of(value + kRounder) - kRounderBits);
  }
  int32_t sums[2] = {0, 0};
  for (int part = 0; part < 2; ++part)
    for (int i = 0; i < 16; ++i) sums[part] += quants[part * 16 + i];
  set_sums<F>(y, row, rounding.scale, sums[0], sums[1]);
}

// The rows of a task by one panel.
template <template <class> class Panel, class F>
void multiply_panel(const Grouped& g, int64_t first_row, int64_t end_row, int64_t i) {
  Panel<F> panel(g, g.a.weight + i * F::panel_bytes(g.num_groups), end_row - first_row);
  alignas(64) float sums[kBlockRows * kPanelRows];
  for (int64_t row = first_row; row < end_row; row += kBlockRows) {
    const int64_t num_rows = end_row - row < kBlockRows ? end_row - row : kBlockRows;
    panel.multiply(g.block(row), static_cast<int>(num_rows), sums);
    for (int64_t r = 0; r < num_rows; ++r) {
      const float* of_row = sums + r * kPanelRows;
      finish_half([&](int64_t column) { return load_floats(of_row + column); }, g.a, row + r, i);
    }
  }
}

// A kernel. Panel<F> is what one instruction set makes of a panel and multiplies blocks of rows by, which it has
// quantized.
template <template <class> class Panel, class F>
void linear_grouped(const void* words, const Context& context) {
  constexpr int64_t kTaskRows = 128;  // activations that stay in the second-level cache while weights pass by
  constexpr int64_t kMaxPanels = 16;
  const auto& a = arguments<LinearArguments>(words);
  const int64_t num_rows = num_rows_of(a.extent, context.step), num_groups = a.k / kGroup;
  const int64_t num_blocks = (num_rows + kBlockRows - 1) / kBlockRows;
  const int64_t num_bytes = num_blocks * num_groups * int64_t{sizeof(Activations)};
  const Grouped g{a, num_groups, reinterpret_cast<Activations*>(scratch(Scratch::kActivations, num_bytes))};
  context.pool.run(num_rows, [&](int64_t row) {
    Activations* y = g.block(row);
    for (int64_t group = 0; group < num_groups; ++group)
      Panel<F>::quantize(a.x + row * a.x_stride + group * kGroup, y[group], static_cast<int>(row % kBlockRows));
  });

  const int64_t num_panels = a.n / kPanelRows;
  const int64_t shared = num_panels / (8 * context.pool.num_threads());
  const int64_t panels = shared < 1 ? 1 : shared < kMaxPanels ? shared : kMaxPanels;
  const int64_t num_runs = (num_panels + panels - 1) / panels;
  const int64_t num_chunks = (num_rows + kTaskRows - 1) / kTaskRows;
  context.pool.run(num_chunks * num_runs, [&](int64_t i) {
    const int64_t first = i / num_runs * kTaskRows, end = first + kTaskRows < num_rows ? first + kTaskRows : num_rows;
    const int64_t run = i % num_runs * panels;
    for (int64_t panel = run; panel < num_panels && panel < run + panels; ++panel)
      multiply_panel<Panel, F>(g, first, end, panel);
  });
}

// A group of kernels, for each instruction set.
template <template <class> class Panel>
constexpr Entry kLinearGrouped[] = {
    {"linear_q4", linear_grouped<Panel, Q4>},
    {"linear_q4_zero", linear_grouped<Panel, Q4Zero>},
    {"linear_q4_k", linear_grouped<Panel, Q4K>},
    {"linear_q5", linear_grouped<Panel, Q5>},
    {"linear_q6_k", linear_grouped<Panel, Q6K>},
    {"linear_q8", linear_grouped<Panel, Q8>},
    {nullptr, nullptr},
};

}  // namespace
}  // namespace headrace
