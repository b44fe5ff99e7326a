// Weights quantized in groups, a quant at a time and without instructions of one machine.
#pragma once
#include "grouped.h"

namespace headrace {
namespace {

// Columns with one scale, in a tile.
template <class F>
struct Part {
  int8_t quads[F::kPartQuads][kColumnTile * 4];  // less their zero points
  float scales[kColumnTile];
  float mins[kColumnTile];
};

// Exact, also of the small halves that are not normalized; not of infinities and NaN, which no weight has.
inline float widen_half(const uint8_t* x) {
  uint16_t half;
  std::memcpy(&half, x, sizeof half);
  const float magnitude = float_of(uint32_t{half & 0x7FFFu} << 13) * 0x1p112f;
  return half & 0x8000 ? -magnitude : magnitude;
}

// Eight bits as bytes of 0 and 1.
inline uint64_t spread(uint8_t bits) {
  constexpr uint64_t kEach = 0x0101010101010101, kBit = 0x8040201008040201;
  const uint64_t chosen = (bits * kEach) & kBit;
  return ((chosen + 0x7F7F7F7F7F7F7F7F) | chosen) >> 7 & kEach;
}

// One quad of a tile, unsigned but for eight bits.
template <class F>
inline void unpack_quad(const uint8_t* quants, int tile, int quad, uint8_t* out) {
  constexpr int kQuad = kColumnTile * 4;
  if constexpr (F::kBits == 8) {
    std::memcpy(out, quants + (tile * kGroupQuads + quad) * kQuad, kQuad);
    return;
  }
  const uint8_t* nibbles = quants + (tile * kGroupQuads + quad) / 2 * kQuad;
  const int shift = quad % 2 * 4;
  for (int i = 0; i < kQuad; ++i) out[i] = nibbles[i] >> shift & 15;
  for (int plane = 0; plane < F::kBits - 4; ++plane) {
    const uint8_t* bits = quants + F::kPlanes + plane * F::kPlane + (tile * kGroupQuads + quad) * kQuad / 8;
    for (int i = 0; i < kQuad / 8; ++i) {
      uint64_t eight;
      std::memcpy(&eight, out + i * 8, sizeof eight);
      eight |= spread(bits[i]) << (4 + plane);
      std::memcpy(out + i * 8, &eight, sizeof eight);
    }
  }
}

// Of one row of a panel, `group` counted within its block.
template <class F>
inline float scale_of(const uint8_t* head, int64_t group, int part, int row) {
  const float half = widen_half(head + row * 2);
  if (!F::kIsSuper) return half;
  const uint8_t factor = head[F::kFactors + (group * F::kParts + part) * kPanelRows + row];
  return half * static_cast<float>(F::kHasMins ? int{factor} : int{static_cast<int8_t>(factor)});
}

template <class F>
inline float min_of(const uint8_t* head, int64_t group, int row) {
  if (!F::kHasMins) return 0.0f;
  return widen_half(head + F::kHalves + row * 2) * static_cast<float>(head[F::kMinFactors + group * kPanelRows + row]);
}

template <class F>
inline int zero_of(const uint8_t* head, int row) {
  if (F::kBits == 8) return 0;  // already less its zero point
  return F::kHasZeros ? head[F::kHalves + row] : F::kZero;
}

// One row of the weight.
template <class F>
void dequantize_row(const EmbeddingArguments& a, int64_t id, float* out) {
  const int64_t num_groups = a.k / kGroup;
  const uint8_t* panel = a.weight + id / kPanelRows * F::panel_bytes(num_groups);
  const int row = static_cast<int>(id % kPanelRows), tile = row / kColumnTile, column = row % kColumnTile;
  const float factor = static_cast<float>(a.scale);
  for (int64_t k = 0; k < a.k; k += 4) {
    const int64_t group = k / kGroup, in_block = group % F::kBlockGroups;
    const int quad = static_cast<int>(k % kGroup / 4);
    const uint8_t* head = F::head(panel, group);
    uint8_t quants[kColumnTile * 4];
    unpack_quad<F>(F::quants(panel, group), tile, quad, quants);
    const float scale = scale_of<F>(head, in_block, quad / F::kPartQuads, row), min = min_of<F>(head, in_block, row);
    const int zero = zero_of<F>(head, row);
    for (int i = 0; i < 4; ++i) {
      const uint8_t quant = quants[column * 4 + i];
      const int value = (F::kBits == 8 ? int{static_cast<int8_t>(quant)} : int{quant}) - zero;
      out[k + i] = (static_cast<float>(value) * scale - min) * factor;
    }
  }
}

template <class F>
void embedding_grouped(const void* words, const Context& context) {
  const auto& a = arguments<EmbeddingArguments>(words);
  context.pool.run(context.step.num_tokens, [&](int64_t token) {
    dequantize_row<F>(a, context.step.input_ids[token], a.out + token * a.out_stride);
  });
}

constexpr Entry kEmbeddingGrouped[] = {
    {"embedding_q4", embedding_grouped<Q4>},
    {"embedding_q4_zero", embedding_grouped<Q4Zero>},
    {"embedding_q4_k", embedding_grouped<Q4K>},
    {"embedding_q5", embedding_grouped<Q5>},
    {"embedding_q6_k", embedding_grouped<Q6K>},
    {"embedding_q8", embedding_grouped<Q8>},
    {nullptr, nullptr},
};

}  // namespace
}  // namespace headrace
