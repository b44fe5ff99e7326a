#include "sampling.h"

#include <algorithm>
#include <cmath>

#include "sampling_select.h"

namespace headrace {
namespace {

// Memory of one thread, which grows to what the longest row needs.
struct Scratch {
  std::vector<float> weights;
  std::vector<double> sums;  // of the blocks
};

Scratch& scratch_for(int64_t vocab_size) {
  thread_local Scratch scratch;
  const size_t num_weights = vocab_size + 16, num_blocks = (vocab_size + kBlock - 1) / kBlock;
  if (scratch.weights.size() < num_weights) scratch.weights.resize(num_weights);
  if (scratch.sums.size() < num_blocks) scratch.sums.resize(num_blocks);
  return scratch;
}

// A row and how it is weighed. Weights smaller than `least` count as nothing.
struct Row {
  const SamplingLoops& loops;
  const float* logits;
  int64_t vocab_size;
  Weighing weighing;
  float least = 0.0f;

  int64_t num_blocks() const { return (vocab_size + kBlock - 1) / kBlock; }
  int64_t size_of(int64_t block) const { return std::min(kBlock, vocab_size - block * kBlock); }

  double weigh(int64_t block, float* weights) const {
    const double sum = loops.weigh(logits + block * kBlock, size_of(block), weighing, weights);
    return least > 0.0f ? loops.sum_from(weights, size_of(block), least) : sum;
  }
};

void limit_to_top_k(Row& row, int64_t top_k, Scratch& scratch) {
  const float edge = kth_largest(row.loops, row.logits, row.vocab_size, top_k, scratch.weights.data());
  row.weighing.floor = (edge - row.weighing.largest) / row.weighing.temperature;
}

void limit_to_top_p(Row& row, double top_p, Scratch& scratch) {
  double total = 0.0;
  for (int64_t block = 0; block < row.num_blocks(); ++block)
    total += row.weigh(block, scratch.weights.data() + block * kBlock);
  row.least = nucleus_edge(row.loops, scratch.weights.data(), row.vocab_size, total, top_p);
}

// The first token of the block up to which, with what is before the block, there is more than `mass`.
int64_t find_in_block(const Row& row, int64_t block, double before, double mass) {
  float weights[kBlock];
  row.weigh(block, weights);
  int64_t found = -1;
  for (int64_t i = 0; i < row.size_of(block) && before <= mass; ++i) {
    if (weights[i] == 0.0f || weights[i] < row.least) continue;
    before += weights[i];
    found = i;  // the last that weighs something, if the block's sum was rounded up
  }
  return block * kBlock + found;
}

int64_t invert(const Row& row, double uniform, Scratch& scratch) {
  double total = 0.0;
  for (int64_t block = 0; block < row.num_blocks(); ++block) {
    scratch.sums[block] = row.weigh(block, scratch.weights.data());
    total += scratch.sums[block];
  }
  const double mass = uniform * total;  // below the total, by more than it is rounded
  double before = 0.0;
  for (int64_t block = 0; block < row.num_blocks(); ++block) {
    if (before + scratch.sums[block] > mass) return find_in_block(row, block, before, mass);
    before += scratch.sums[block];
  }
  return -1;
}

int64_t draw_row(const SamplingLoops& loops, const float* logits, int64_t vocab_size, const Draw& draw) {
  const float largest = loops.maximum(logits, vocab_size);
  if (!std::isfinite(largest)) return -1;
  Scratch& scratch = scratch_for(vocab_size);
  Row row{loops, logits, vocab_size, {largest, static_cast<float>(draw.temperature), -INFINITY}};
  if (draw.top_k > 0 && draw.top_k < vocab_size) limit_to_top_k(row, draw.top_k, scratch);
  if (draw.top_p < 1.0) limit_to_top_p(row, draw.top_p, scratch);
  if (draw.min_p > 0.0) row.weighing.floor = std::max(row.weighing.floor, static_cast<float>(std::log(draw.min_p)));
  return invert(row, draw.uniform, scratch);
}

void greedy_row(const SamplingLoops& loops, const float* logits, int64_t vocab_size, float& best, int64_t& id) {
  best = -INFINITY;
  int64_t first = 0;  // token of the block that has it
  for (int64_t start = 0; start < vocab_size; start += kBlock) {
    const float largest = loops.maximum(logits + start, std::min(kBlock, vocab_size - start));
    if (largest <= best) continue;
    best = largest, first = start;
    if (std::isnan(best)) break;
  }
  for (id = first; logits[id] != best && !std::isnan(logits[id]);) ++id;
}

}  // namespace

void greedy_with(const SamplingLoops& loops, const GreedyArguments& a, Pool& pool) {
  pool.run(a.num_rows, [&](int64_t row) {
    greedy_row(loops, a.logits + row * a.stride, a.vocab_size, a.best[row], a.ids[row]);
  });
}

void draw_with(const SamplingLoops& loops, const DrawArguments& a, Pool& pool) {
  pool.run(a.num_draws, [&](int64_t i) {
    a.ids[i] = draw_row(loops, a.logits + a.draws[i].row * a.stride, a.vocab_size, a.draws[i]);
  });
}

}  // namespace headrace
