#include "scratch.h"

#include <cstdlib>
#include <cstring>

namespace headrace {
namespace {

constexpr int64_t kPage = 4096;

struct Memory {
  uint8_t* data = nullptr;
  int64_t num_bytes = 0;
  ~Memory() { std::free(data); }
};

}  // namespace

uint8_t* scratch(Scratch purpose, int64_t num_bytes) {
  thread_local Memory memories[2];
  Memory& memory = memories[static_cast<int>(purpose)];
  if (memory.num_bytes < num_bytes) {
    std::free(memory.data);
    memory.num_bytes = (num_bytes + kPage - 1) / kPage * kPage;
    memory.data = static_cast<uint8_t*>(std::aligned_alloc(64, memory.num_bytes));
    if (!memory.data) std::abort();
    std::memset(memory.data, 0, memory.num_bytes);
  }
  return memory.data;
}

}  // namespace headrace
