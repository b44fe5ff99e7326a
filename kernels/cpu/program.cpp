// The C interface: a program is recorded once, kernel by kernel, and run for every step in one call.
#include <memory>
#include <vector>

#include "kernel.h"

namespace {

using headrace::Context;
using headrace::InstructionSet;
using headrace::Kernel;
using headrace::Pool;
using headrace::Step;

struct Operation {
  Kernel kernel;
  std::vector<int64_t> words;
};

struct Program {
  Pool* pool;
  int first_set;  // the best instruction set that may be used
  std::vector<Operation> operations;
};

}  // namespace

extern "C" {

Pool* headrace_pool(int num_threads) { return new Pool(num_threads); }

void headrace_free_pool(Pool* pool) { delete pool; }

// The name of the i-th instruction set, the best first, whether or not it is there; null past the last.
const char* headrace_set_name(int i) {
  const std::vector<InstructionSet>& sets = headrace::instruction_sets();
  return i < static_cast<int>(sets.size()) ? sets[i].name : nullptr;
}

int headrace_has_set(int i) { return headrace::instruction_sets()[i].is_there(); }

// `first_set` and those after it may be used.
Program* headrace_program(Pool* pool, int first_set) { return new Program{pool, first_set, {}}; }

void headrace_free_program(Program* program) { delete program; }

// Null when there is no such kernel.
Kernel headrace_kernel(const Program* program, const char* name) {
  return headrace::find_kernel(name, program->first_set);
}

// Returns 0, or 1 when there is no such kernel.
int headrace_append(Program* program, const char* name, const int64_t* words, int64_t num_words) {
  const Kernel kernel = headrace_kernel(program, name);
  if (!kernel) return 1;
  program->operations.push_back({kernel, std::vector<int64_t>(words, words + num_words)});
  return 0;
}

void headrace_run(const Program* program, const Step* step) {
  const Context context{*step, *program->pool};
  program->pool->begin();
  for (const Operation& operation : program->operations) operation.kernel(operation.words.data(), context);
  program->pool->end();
}

}  // extern "C"
