#define HEADRACE_SET portable
#include "linear_generic.h"

namespace headrace {

extern const Entry kLinearPortable[] = {
    {"linear_bf16", portable::linear_bf16}, {"embedding_bf16", portable::embedding_bf16}, {nullptr, nullptr}};

}  // namespace headrace
