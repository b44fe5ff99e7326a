// Memory that a kernel needs while it runs.
#pragma once
#include <cstdint>

namespace headrace {

enum class Scratch { kActivations, kPanels };

// At least `num_bytes` of this thread's memory for one purpose, on a cache line, kept for its next call. It begins as
// zeros and holds then what the calls before left.
uint8_t* scratch(Scratch purpose, int64_t num_bytes);

}  // namespace headrace
