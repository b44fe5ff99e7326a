// Products of int8 in plain loops, of weights that are int8 or can be unpacked to it.
#include "int8.h"

namespace headrace {
namespace {

constexpr int64_t kColumnsTogether = 256;  // of k, of the panel's rows as they are multiplied: 32 KB
constexpr int64_t kRowsTogether = 32;

// Rows [k] in 16 bits: the compiler knows a product of these that adds pairs.
struct QuantizedRows {
  int16_t* words;
  float* scales;
};

// A weight's panel i, and columns of its rows, one row after the other. What follows takes it from any format.
struct Int8Weight {
  static Int8Panel panel(const uint8_t* weight, int64_t k, int64_t i) { return int8_panel(weight, k, i); }

  static void unpack_quad(const Int8Panel& panel, int64_t row, int64_t quad, int* out) {
    constexpr int64_t kQuads = kInt8Block / kQuad;
    const int8_t* tile = panel.tile(row / kHalf, quad / kQuads, row % kHalf / kInt8TileRows);
    const int8_t* at = tile + (quad % kQuads * kInt8TileRows + row % kInt8TileRows) * kQuad;
    for (int64_t i = 0; i < kQuad; ++i) out[i] = at[i];
  }

  static void unpack(const Int8Panel& panel, int64_t begin, int64_t num_columns, int16_t (*rows)[kColumnsTogether]) {
    for (int64_t row = 0; row < kPanel; ++row) {
      const int8_t* tile = panel.tile(row / kHalf, begin / kInt8Block, row % kHalf / kInt8TileRows);
      tile += row % kInt8TileRows * kQuad;
      int16_t* out = rows[row];
      for (int64_t column = 0; column < num_columns; column += kInt8Block, tile += 2 * kInt8Tile)
        for (int64_t quad = 0; quad < kInt8Block / kQuad; ++quad)
          for (int64_t i = 0; i < kQuad; ++i) *out++ = tile[quad * kInt8TileRows * kQuad + i];
    }
  }
};

inline int32_t dot(const int16_t* a, const int16_t* b, int64_t n) {
  int32_t sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

template <class Weight>
inline void multiply_panel(const LinearArguments& a, const QuantizedRows& x, int64_t begin, int64_t end,
                           int64_t panel) {
  alignas(64) int16_t weight_rows[kPanel][kColumnsTogether];
  int32_t sums[kRowsTogether][kPanel] = {};
  const auto weight = Weight::panel(a.weight, a.k, panel);
  for (int64_t column = 0; column < a.k; column += kColumnsTogether) {
    const int64_t num_columns = std::min(kColumnsTogether, a.k - column);
    Weight::unpack(weight, column, num_columns, weight_rows);
    for (int64_t row = begin; row < end; ++row)
      for (int64_t i = 0; i < kPanel; ++i)
        sums[row - begin][i] += dot(x.words + row * a.k + column, weight_rows[i], num_columns);
  }
  for (int64_t row = begin; row < end; ++row)
    finish_panel(sums[row - begin], x.scales[row], weight.scales, a, row, panel);
}

template <class Weight>
void linear_integers(const void* words, const Context& context) {
  const LinearArguments& a = arguments<LinearArguments>(words);
  const int64_t num_rows = num_rows_of(a.extent, context.step), num_panels = a.n / kPanel;
  const int64_t num_bytes = num_rows * (a.k * int64_t{sizeof(int16_t)} + int64_t{sizeof(float)});
  auto* memory = reinterpret_cast<int16_t*>(scratch(Scratch::kActivations, num_bytes));
  const QuantizedRows x{memory, reinterpret_cast<float*>(memory + num_rows * a.k)};
  context.pool.run(num_rows, [&](int64_t i) {
    x.scales[i] = quantize_row(a.x + i * a.x_stride, a.k, 0, x.words + i * a.k, kInt8Block);
  });
  context.pool.run(divide_up(num_rows, kRowsTogether) * num_panels, [&](int64_t task) {
    const int64_t begin = task / num_panels * kRowsTogether;
    multiply_panel<Weight>(a, x, begin, std::min(num_rows, begin + kRowsTogether), task % num_panels);
  });
}

template <class Weight>
void embedding_integers(const void* words, const Context& context) {
  const EmbeddingArguments& a = arguments<EmbeddingArguments>(words);
  const float scale = static_cast<float>(a.scale);
  context.pool.run(context.step.num_tokens, [&](int64_t token) {
    const int64_t id = context.step.input_ids[token], row = id % kPanel;
    const auto panel = Weight::panel(a.weight, a.k, id / kPanel);
    float* out = a.out + token * a.out_stride;
    for (int64_t i = 0; i < a.k; i += kQuad) {
      int quad[kQuad];
      Weight::unpack_quad(panel, row, i / kQuad, quad);
      for (int64_t j = 0; j < kQuad; ++j) out[i + j] = static_cast<float>(quad[j]) * panel.scales[row] * scale;
    }
  });
}

}  // namespace
}  // namespace headrace
