// Choosing tokens from rows of logits: one algorithm, and its inner loops, which an instruction set provides.
#pragma once
#include "kernel.h"

namespace headrace {

// Of logits [num_rows, vocab_size]: each row's largest, and the lowest token id that has it. NaN if there is one.
struct GreedyArguments {
  const float* logits;
  int64_t stride;  // elements between rows
  int64_t num_rows, vocab_size;
  float* best;
  int64_t* ids;
};

// How one row is drawn from. As Python lays it out.
struct Draw {
  int64_t row;         // of the logits
  int64_t top_k;       // 0: all
  double temperature;  // positive
  double top_p;        // 1: all
  double min_p;        // 0: all
  double uniform;      // a multiple of 2^-52 in [0, 1): where the row's distribution is inverted
};

// A token id for each draw, or -1 where its row has a NaN or no largest that is finite.
struct DrawArguments {
  const float* logits;
  int64_t stride;
  int64_t vocab_size;
  const Draw* draws;
  int64_t num_draws;
  int64_t* ids;
};

// A row is weighed as exp((logit - largest) / temperature), and as 0 below `floor`.
struct Weighing {
  float largest;
  float temperature;
  float floor;  // of (logit - largest) / temperature
};

constexpr int64_t kBlock = 1024;   // tokens that an inner loop is given at once, at most, where it says so
constexpr int64_t kGroups = 1024;  // token i is in group i % kGroups

// What is far below the largest counts as nothing, before exp has results too small for a float's full precision.
constexpr float kLowestExponent = -87.0f;

struct SamplingLoops {
  // The largest of n, or NaN if there is one.
  float (*maximum)(const float* x, int64_t n);
  // The largest of every group; -inf of one without tokens.
  void (*group_maxima)(const float* x, int64_t n, float* maxima);
  // The weights of a block, and their sum.
  double (*weigh)(const float* x, int64_t n, const Weighing& weighing, float* weights);
  // The sum of those that are at least `low`.
  double (*sum_from)(const float* x, int64_t n, float low);
  // Those in [low, high), in order; returns their number. `kept` may be x itself; it has room for n + 16.
  int64_t (*keep)(const float* x, int64_t n, float low, float high, float* kept);
};

void greedy_with(const SamplingLoops& loops, const GreedyArguments& arguments, Pool& pool);
void draw_with(const SamplingLoops& loops, const DrawArguments& arguments, Pool& pool);

}  // namespace headrace
