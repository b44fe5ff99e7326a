#include "int8_generic.h"

namespace headrace {

extern const Entry kInt8Portable[] = {{"linear_int8", linear_integers<Int8Weight>},
                               {"embedding_int8", embedding_integers<Int8Weight>},
                               {nullptr, nullptr}};

}  // namespace headrace
