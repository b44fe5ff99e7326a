// The C interface of choosing tokens, which is done between the runs of a program. The pool is the caller's alone.
#include "sampling.h"

namespace {

using headrace::Draw;
using headrace::DrawArguments;
using headrace::GreedyArguments;
using headrace::Pool;

// A single row is one thread's work: waking the others would cost more than it takes.
template <class Arguments>
void run(Pool* pool, int first_set, const char* name, const Arguments& arguments, int64_t num_rows) {
  const headrace::Step no_step{};
  if (num_rows > 1) pool->begin();
  headrace::find_kernel(name, first_set)(&arguments, {no_step, *pool});
  if (num_rows > 1) pool->end();
}

}  // namespace

extern "C" {

// Instruction set `first_set` and those after it may be used.
void headrace_greedy(Pool* pool, int first_set, const float* logits, int64_t stride, int64_t num_rows,
                     int64_t vocab_size, float* best, int64_t* ids) {
  run(pool, first_set, "greedy", GreedyArguments{logits, stride, num_rows, vocab_size, best, ids}, num_rows);
}

void headrace_draw(Pool* pool, int first_set, const float* logits, int64_t stride, int64_t vocab_size,
                   const Draw* draws, int64_t num_draws, int64_t* ids) {
  run(pool, first_set, "draw", DrawArguments{logits, stride, vocab_size, draws, num_draws, ids}, num_draws);
}

}  // extern "C"
