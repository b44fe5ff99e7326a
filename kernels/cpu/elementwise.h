// What the element-wise kernels are asked.
#pragma once
#include "kernel.h"

namespace headrace {

// y = x / rms(x) * weight, over float or bfloat16 x, rounded once.
struct RmsNormArguments {
  int64_t extent;
  const void* x;
  int64_t x_stride, x_kind;  // OutKind
  const float* weight;       // [dim]
  void* y;
  int64_t y_stride, y_kind;
  int64_t dim;
  double eps;
};

// residual += x, then y = rms_norm(residual).
struct AddRmsNormArguments {
  const void* x;
  int64_t x_stride, x_kind;
  float* residual;
  int64_t residual_stride;
  const float* weight;
  uint16_t* y;
  int64_t y_stride;
  int64_t dim;
  double eps;
};

// y[i] = x[rows[i]], bfloat16.
struct SelectRowsArguments {
  const uint16_t* x;
  int64_t x_stride;
  uint16_t* y;
  int64_t y_stride;
  int64_t dim;
};

}  // namespace headrace
