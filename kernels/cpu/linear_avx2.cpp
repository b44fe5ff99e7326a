#define HEADRACE_SET avx2
#include "linear_generic.h"

namespace headrace {

extern const Entry kLinearAvx2[] = {
    {"linear_bf16", avx2::linear_bf16}, {"embedding_bf16", avx2::embedding_bf16}, {nullptr, nullptr}};

}  // namespace headrace
