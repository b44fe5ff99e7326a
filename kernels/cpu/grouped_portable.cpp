// Linear layers and embeddings over weights quantized in groups, on any machine.
#include "grouped_generic.h"

namespace headrace {
namespace {

struct PlainDot {
  template <int kQuads>
  static void multiply(const int8_t (&quads)[kQuads][kColumnTile * 4], const int8_t* x, int32_t* products) {
    for (int i = 0; i < kColumnTile; ++i) products[i] = 0;
    for (int quad = 0; quad < kQuads; ++quad)
      for (int i = 0; i < kColumnTile; ++i)
        for (int j = 0; j < 4; ++j) products[i] += quads[quad][i * 4 + j] * x[quad * 4 + j];
  }
};

template <class F>
using Panel = UnpackedPanel<PlainDot, F>;

}  // namespace

extern const Entry* const kGroupedPortable = kLinearGrouped<Panel>;
extern const Entry* const kGroupedEmbeddingPortable = kEmbeddingGrouped;

}  // namespace headrace
