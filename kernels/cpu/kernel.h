// What an instruction set provides: kernels by name. A program takes each from the best set that the machine has.
//
// A kernel gets its arguments as an array of 8-byte words, which it reads as a struct of pointers, int64_t and double
// (`arguments<T>`), in the order in which Python appended them. It shares its work among the pool's threads itself.
// A row's result must not depend on the other rows, on how many there are, nor on the number of threads: bit for bit.
#pragma once
#include <cstdint>
#include <vector>

#include "pool.h"
#include "step.h"

namespace headrace {

struct Context {
  const Step& step;
  Pool& pool;
};

using Kernel = void (*)(const void* words, const Context& context);

struct Entry {
  const char* name;
  Kernel kernel;
};

struct InstructionSet {
  const char* name;
  bool (*is_there)();            // whether this machine and its kernel let us use it
  std::vector<const Entry*> groups;  // the kernels of one source file each; a group ends with a null name
};

// The best first; the last is there on every machine and has every kernel. In instruction_sets.cpp.
const std::vector<InstructionSet>& instruction_sets();

// From the best set that has it, of those from `first_set` on that may be used; null where there is none.
Kernel find_kernel(const char* name, int first_set);

template <class T>
const T& arguments(const void* words) {
  static_assert(sizeof(T) % 8 == 0, "arguments are 8-byte words");
  return *static_cast<const T*>(words);
}

// Which rows an operation is of.
enum Extent : int64_t { kTokens = 0, kRows = 1 };

inline int64_t num_rows_of(int64_t extent, const Step& step) {
  return extent == kRows ? step.num_rows : step.num_tokens;
}

}  // namespace headrace
