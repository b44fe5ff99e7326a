// What the kernels for mixtures of experts are asked. A token has one row for each expert that it chose; these rows lie
// by expert, and within an expert in the order of the tokens.
#pragma once
#include "linear.h"

namespace headrace {

// Of every token the likeliest experts, the likeliest first; of equally likely ones that with the lower id.
struct SelectExpertsArguments {
  const float* logits;  // [tokens, num_experts]
  int64_t logits_stride, num_experts, num_chosen;
  int64_t is_normalized;  // whether the weights of those chosen add up to one
  int64_t* ids;           // [tokens, num_chosen]
  int64_t ids_stride;
  float* weights;  // [tokens, num_chosen]: probabilities
  int64_t weights_stride;
};

struct GroupByExpertArguments {
  const int64_t* ids;  // [tokens, num_chosen]
  int64_t ids_stride, num_chosen, num_experts;
  int64_t* places;  // [tokens, num_chosen]: the row of y that is the token's for this expert
  int64_t places_stride;
  int64_t* ends;      // [num_experts]: where each expert's rows end
  const uint16_t* x;  // bfloat16 [tokens, dim]
  int64_t x_stride;
  uint16_t* y;  // bfloat16 [tokens * num_chosen, dim]
  int64_t y_stride;
  int64_t dim;
};

// A linear kernel of any format, and its weight. The arguments' x and out are the first row of all experts.
struct ExpertLinear {
  Kernel kernel;
  LinearArguments arguments;
};

struct LinearByExpertArguments {
  const ExpertLinear* experts;  // [num_experts]
  int64_t num_experts;
  const int64_t* ends;  // [num_experts]
};

// out[t] = sum of weights[t, choice] * y[places[t, choice]], choice after choice.
struct SumExpertsArguments {
  const float* y;
  int64_t y_stride;
  const int64_t* places;
  int64_t places_stride;
  const float* weights;
  int64_t weights_stride, num_chosen;
  float* out;
  int64_t out_stride;
  int64_t dim;
};

}  // namespace headrace
