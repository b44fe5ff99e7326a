// Edges among the values of one row: those from some value upwards stay, so equal ones stay or go together.
#pragma once
#include "sampling.h"

namespace headrace {

// The k-th largest of n values, 0 < k <= n, of which none is a NaN or inf. `scratch` has room for n + 16.
float kth_largest(const SamplingLoops& loops, const float* x, int64_t n, int64_t k, float* scratch);

// The smallest weight among the fewest that together have at least `top_p` of `total`, which is their sum.
// `weights` [n], none negative, are lost; they have room for 16 more.
float nucleus_edge(const SamplingLoops& loops, float* weights, int64_t n, double total, double top_p);

}  // namespace headrace
