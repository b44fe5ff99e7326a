#define HEADRACE_SET avx2
#include "sampling_generic.h"

namespace headrace {

extern const Entry kSamplingAvx2[] = {{"greedy", avx2::greedy}, {"draw", avx2::draw}, {nullptr, nullptr}};

}  // namespace headrace
