// Linear layers and embeddings over weights quantized in groups, on any machine: panels are first unpacked to a byte
// for each quant.
#include "grouped_generic.h"

namespace headrace {
namespace {

template <class F>
void unpack_part(const uint8_t* panel, int64_t group, int part, int tile, Part<F>& out) {
  const uint8_t* head = F::head(panel, group);
  const int first_row = tile * kColumnTile;
  int8_t zeros[kColumnTile * 4];
  for (int i = 0; i < kColumnTile; ++i) {
    out.scales[i] = scale_of<F>(head, group % F::kBlockGroups, part, first_row + i);
    out.mins[i] = min_of<F>(head, group % F::kBlockGroups, first_row + i);
    for (int j = 0; j < 4; ++j) zeros[i * 4 + j] = static_cast<int8_t>(zero_of<F>(head, first_row + i));
  }
  for (int i = 0; i < F::kPartQuads; ++i) {
    uint8_t quad[kColumnTile * 4];
    unpack_quad<F>(F::quants(panel, group), tile, part * F::kPartQuads + i, quad);
    for (int j = 0; j < kColumnTile * 4; ++j) out.quads[i][j] = static_cast<int8_t>(quad[j] - zeros[j]);
  }
}

// The 16 integer sums of a part's quads with x.
template <int kQuads>
inline void multiply_quads(const int8_t (&quads)[kQuads][kColumnTile * 4], const int8_t* x, int32_t* products) {
  for (int i = 0; i < kColumnTile; ++i) products[i] = 0;
  for (int quad = 0; quad < kQuads; ++quad)
    for (int i = 0; i < kColumnTile; ++i)
      for (int j = 0; j < 4; ++j) products[i] += quads[quad][i * 4 + j] * x[quad * 4 + j];
}

// Adds to the `sums` of a tile what a part gives for a row.
template <class F>
inline void add_part(const Part<F>& weights, const Activations& x, int part, int row, float* sums) {
  int32_t products[kColumnTile];
  multiply_quads(weights.quads, x.quants[row] + part * F::kPartColumns, products);
  for (int i = 0; i < kColumnTile; ++i)
    sums[i] = __builtin_fmaf(static_cast<float>(products[i]), weights.scales[i] * x.scales[row], sums[i]);
  if (F::kHasMins)
    for (int i = 0; i < kColumnTile; ++i) sums[i] = __builtin_fmaf(-weights.mins[i], x.sums[row], sums[i]);
}

// A panel, unpacked to [2 tiles][groups][parts].
template <class F>
struct UnpackedPanel {
  int64_t num_groups;
  Part<F>* parts;

  UnpackedPanel(const Grouped& g, const uint8_t* packed, int64_t /*num_rows*/) : num_groups(g.num_groups) {
    const int64_t num_bytes = kPanelTiles * num_groups * F::kParts * int64_t{sizeof(Part<F>)};
    parts = reinterpret_cast<Part<F>*>(scratch(Scratch::kPanels, num_bytes));
    Part<F>* out = parts;
    for (int tile = 0; tile < kPanelTiles; ++tile)
      for (int64_t group = 0; group < num_groups; ++group)
        for (int part = 0; part < F::kParts; ++part, ++out) unpack_part(packed, group, part, tile, *out);
  }

  static void quantize(const uint16_t* x, Activations& y, int row) { quantize_group<F>(x, y, row); }

  // sums [num_rows, 32] of up to 16 rows.
  void multiply(const Activations* x, int num_rows, float* sums) const {
    for (int row = 0; row < num_rows; ++row)
      for (int tile = 0; tile < kPanelTiles; ++tile)
        multiply_tile(x, row, parts + tile * num_groups * F::kParts, sums + row * kPanelRows + tile * kColumnTile);
  }

  void multiply_tile(const Activations* x, int row, const Part<F>* weights, float* sums) const {
    float total[kColumnTile] = {};
    for (int64_t group = 0; group < num_groups; ++group)
      for (int part = 0; part < F::kParts; ++part) add_part(*weights++, x[group], part, row, total);
    std::memcpy(sums, total, sizeof total);
  }
};

}  // namespace

extern const Entry* const kGroupedPortable = kLinearGrouped<UnpackedPanel>;
extern const Entry* const kGroupedEmbeddingPortable = kEmbeddingGrouped;

}  // namespace headrace
