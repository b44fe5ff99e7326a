#define HEADRACE_SET avx2
#include "elementwise_generic.h"

namespace headrace {

extern const Entry kElementwiseAvx2[] = {
    {"rms_norm", avx2::rms_norm}, {"add_rms_norm", avx2::add_rms_norm}, {nullptr, nullptr}};

}  // namespace headrace
