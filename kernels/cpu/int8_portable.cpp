#include "int8_generic.h"

namespace headrace {

extern const Entry kInt8Portable[] = {
    {"linear_int8", linear_int8}, {"embedding_int8", embedding_int8}, {nullptr, nullptr}};

}  // namespace headrace
