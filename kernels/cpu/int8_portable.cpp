#include <cstdlib>

#include "int8_generic.h"

namespace headrace {
namespace {

struct Scratch {
  uint8_t* memory = nullptr;
  int64_t num_bytes = 0;
  ~Scratch() { std::free(memory); }
};

}  // namespace

uint8_t* int8_scratch(int64_t num_bytes) {
  thread_local Scratch scratch;
  if (num_bytes > scratch.num_bytes) {
    std::free(scratch.memory);
    scratch.num_bytes = divide_up(num_bytes, 4096) * 4096;
    scratch.memory = static_cast<uint8_t*>(std::aligned_alloc(64, scratch.num_bytes));
  }
  return scratch.memory;
}

extern const Entry kInt8Portable[] = {
    {"linear_int8", linear_int8}, {"embedding_int8", embedding_int8}, {nullptr, nullptr}};

}  // namespace headrace
