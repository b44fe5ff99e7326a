#include "rotate_generic.h"

namespace headrace {

extern const Entry kAttentionPortable[] = {{"attention", attention<Bfloat16Cache>},
                                       {"attention_int8", attention<Int8Cache<GenericAttention>>},
                                       {"rotate_and_store", rotate_and_store<GenericRotation, Bfloat16Writer>},
                                       {"rotate_and_store_int8", rotate_and_store<GenericRotation, Int8Writer>},
                                       {nullptr, nullptr}};

}  // namespace headrace
