#include "attention_generic.h"

namespace headrace {

extern const Entry kAttentionAvx2[] = {
    {"attention", attention_generic}, {"rotate_and_store", rotate_and_store_generic}, {nullptr, nullptr}};

}  // namespace headrace
