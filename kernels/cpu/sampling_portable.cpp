#define HEADRACE_SET portable
#include "sampling_generic.h"

namespace headrace {

extern const Entry kSamplingPortable[] = {{"greedy", portable::greedy}, {"draw", portable::draw}, {nullptr, nullptr}};

}  // namespace headrace
