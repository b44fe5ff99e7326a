// Linear layers and embeddings over weights quantized in groups, on any machine.
#include <cstdlib>

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
using Panels = UnpackedPanels<PlainDot, F>;

struct Memory {
  uint8_t* data = nullptr;
  int64_t num_bytes = 0;
  ~Memory() { std::free(data); }
};

}  // namespace

uint8_t* grouped_scratch(Scratch purpose, int64_t num_bytes) {
  thread_local Memory memories[2];
  Memory& memory = memories[static_cast<int>(purpose)];
  if (memory.num_bytes < num_bytes) {
    std::free(memory.data);
    memory.num_bytes = (num_bytes + 63) / 64 * 64;
    memory.data = static_cast<uint8_t*>(std::aligned_alloc(64, memory.num_bytes));
    if (!memory.data) std::abort();
    std::memset(memory.data, 0, memory.num_bytes);
  }
  return memory.data;
}

extern const Entry kGroupedPortable[] = {
    {"linear_q4", linear_grouped<Panels, Q4>},
    {"linear_q4_zero", linear_grouped<Panels, Q4Zero>},
    {"linear_q4_k", linear_grouped<Panels, Q4K>},
    {"linear_q5", linear_grouped<Panels, Q5>},
    {"linear_q6_k", linear_grouped<Panels, Q6K>},
    {"linear_q8", linear_grouped<Panels, Q8>},
    {"embedding_q4", embedding_grouped<Q4>},
    {"embedding_q4_zero", embedding_grouped<Q4Zero>},
    {"embedding_q4_k", embedding_grouped<Q4K>},
    {"embedding_q5", embedding_grouped<Q5>},
    {"embedding_q6_k", embedding_grouped<Q6K>},
    {"embedding_q8", embedding_grouped<Q8>},
    {nullptr, nullptr},
};

}  // namespace headrace
