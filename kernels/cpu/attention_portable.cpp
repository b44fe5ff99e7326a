#include "attention_generic.h"

namespace headrace {

extern const Entry kAttentionPortable[] = {
    {"attention", attention_generic}, {"rotate_and_store", rotate_and_store_generic}, {nullptr, nullptr}};

}  // namespace headrace
