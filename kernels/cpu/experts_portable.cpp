// Mixtures of experts on any machine: the products, which are most of the work, are the linear kernels of the best
// instruction set, called for the rows of one expert after the other.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "experts.h"
#include "rows.h"

namespace headrace {
namespace {

// The first of the largest logits that no earlier choice took. With NaN among them any will do: the weights are NaN.
int64_t find_largest(const float* logits, int64_t num_experts, const int64_t* taken, int64_t num_taken) {
  int64_t largest = -1;
  for (int64_t expert = 0; expert < num_experts; ++expert) {
    const bool is_larger = largest < 0 || logits[expert] > logits[largest];
    if (is_larger && std::find(taken, taken + num_taken, expert) == taken + num_taken) largest = expert;
  }
  return largest;
}

void select_of_row(const SelectExpertsArguments& a, const float* logits, int64_t* ids, float* weights) {
  for (int64_t choice = 0; choice < a.num_chosen; ++choice)
    ids[choice] = find_largest(logits, a.num_experts, ids, choice);
  const float largest = logits[ids[0]];
  float sum = 0.0f, sum_chosen = 0.0f;
  for (int64_t expert = 0; expert < a.num_experts; ++expert) sum += std::exp(logits[expert] - largest);
  for (int64_t choice = 0; choice < a.num_chosen; ++choice) {
    weights[choice] = std::exp(logits[ids[choice]] - largest) / sum;
    sum_chosen += weights[choice];
  }
  if (a.is_normalized)
    for (int64_t choice = 0; choice < a.num_chosen; ++choice) weights[choice] /= sum_chosen;
}

void select_experts(const void* words, const Context& context) {
  const auto& a = arguments<SelectExpertsArguments>(words);
  share_rows(context.pool, context.step.num_tokens, a.num_experts * a.num_chosen, [&](int64_t row) {
    select_of_row(a, a.logits + row * a.logits_stride, a.ids + row * a.ids_stride, a.weights + row * a.weights_stride);
  });
}

// Counts, then deals out places in the order of the tokens.
void place_rows(const GroupByExpertArguments& a, int64_t num_tokens) {
  std::fill(a.ends, a.ends + a.num_experts, 0);
  for (int64_t token = 0; token < num_tokens; ++token)
    for (int64_t choice = 0; choice < a.num_chosen; ++choice) ++a.ends[a.ids[token * a.ids_stride + choice]];
  int64_t end = 0;
  for (int64_t expert = 0; expert < a.num_experts; ++expert) {
    end += a.ends[expert];
    a.ends[expert] = end - a.ends[expert];  // for now, where its next row goes
  }
  for (int64_t token = 0; token < num_tokens; ++token)
    for (int64_t choice = 0; choice < a.num_chosen; ++choice)
      a.places[token * a.places_stride + choice] = a.ends[a.ids[token * a.ids_stride + choice]]++;
}

void group_by_expert(const void* words, const Context& context) {
  const auto& a = arguments<GroupByExpertArguments>(words);
  place_rows(a, context.step.num_tokens);
  share_rows(context.pool, context.step.num_tokens, a.dim * a.num_chosen, [&](int64_t token) {
    for (int64_t choice = 0; choice < a.num_chosen; ++choice) {
      uint16_t* y = a.y + a.places[token * a.places_stride + choice] * a.y_stride;
      std::memcpy(y, a.x + token * a.x_stride, a.dim * sizeof *y);
    }
  });
}

// The kernel takes the expert's rows for all there are.
void multiply_rows(const ExpertLinear& expert, int64_t first_row, int64_t num_rows, const Context& context) {
  LinearArguments a = expert.arguments;
  a.extent = kTokens;
  a.x += first_row * a.x_stride;
  const int64_t element = a.out_kind == kFloat ? sizeof(float) : sizeof(uint16_t);
  a.out = static_cast<uint8_t*>(a.out) + first_row * a.out_stride * element;
  Step step = context.step;
  step.num_tokens = num_rows;
  expert.kernel(&a, Context{step, context.pool});
}

void linear_by_expert(const void* words, const Context& context) {
  const auto& a = arguments<LinearByExpertArguments>(words);
  int64_t first_row = 0;
  for (int64_t expert = 0; expert < a.num_experts; first_row = a.ends[expert++])
    if (a.ends[expert] > first_row)
      multiply_rows(a.experts[expert], first_row, a.ends[expert] - first_row, context);
}

void add_scaled(const float* y, float weight, float* out, int64_t dim) {
  for (int64_t i = 0; i < dim; ++i) out[i] += weight * y[i];
}

void sum_experts(const void* words, const Context& context) {
  const auto& a = arguments<SumExpertsArguments>(words);
  share_rows(context.pool, context.step.num_tokens, a.dim * a.num_chosen, [&](int64_t token) {
    float* out = a.out + token * a.out_stride;
    std::fill(out, out + a.dim, 0.0f);
    for (int64_t choice = 0; choice < a.num_chosen; ++choice) {
      const float* y = a.y + a.places[token * a.places_stride + choice] * a.y_stride;
      add_scaled(y, a.weights[token * a.weights_stride + choice], out, a.dim);
    }
  });
}

}  // namespace

extern const Entry kExpertsPortable[] = {{"select_experts", select_experts},
                                         {"group_by_expert", group_by_expert},
                                         {"linear_by_expert", linear_by_expert},
                                         {"sum_experts", sum_experts},
                                         {nullptr, nullptr}};

}  // namespace headrace
