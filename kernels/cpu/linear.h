// What every linear kernel is asked, whatever its weights' format.
#pragma once
#include <type_traits>

#include "kernel.h"

namespace headrace {

enum OutKind : int64_t { kFloat = 0, kBfloat16 = 1 };
// Gated: of every 32 packed rows of the weight the first 16 are gates and the others what they gate, and the result has
// half as many columns.
enum Epilogue : int64_t { kPlain = 0, kSiluGated = 1, kGeluGated = 2 };

// out[r] = epilogue(x[r] @ weight.T + bias), over x bfloat16 [rows, k], weight packed [n, k].
struct LinearArguments {
  int64_t extent;       // Extent
  const uint16_t* x;    // bfloat16; columns from k up to the next multiple of 64 are zeros
  int64_t x_stride;     // elements between rows, whole cache lines
  const uint8_t* weight;  // packed, as the format says
  int64_t n, k;         // multiples of 64, with what the packing added
  const float* bias;    // [n], packed as the weight's rows are; or null
  void* out;            // float or bfloat16
  int64_t out_stride;   // elements between rows, whole cache lines
  int64_t out_kind;     // OutKind
  int64_t epilogue;     // Epilogue
};

// Rows of the same packed weight, which is also the output head: out[t] = weight[input_ids[t]] * scale.
struct EmbeddingArguments {
  const uint8_t* weight;
  int64_t n, k;
  double scale;
  float* out;
  int64_t out_stride;
};

constexpr int64_t kPanel = 64;  // weight rows that are packed together
constexpr int64_t kHalf = 32;   // half a panel, whose results need nothing of the other half
constexpr int64_t kGates = 16;  // of half a panel, where it is gated

namespace {  // each source file compiles it for its own instruction set

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Where half a panel's results go, from a row on.
struct Destination {
  const float* bias = nullptr;  // of the half panel's columns, or null
  uint8_t* out = nullptr;
  int64_t row_bytes = 0;  // from a row to the next

  Destination() = default;
  Destination(const LinearArguments& a, int64_t row, int64_t half)
      : bias(a.bias ? a.bias + half * kHalf : nullptr) {
    const int64_t element = a.out_kind == kFloat ? sizeof(float) : sizeof(uint16_t);
    const int64_t column = half * (a.epilogue == kPlain ? kHalf : kGates);
    row_bytes = a.out_stride * element;
    out = static_cast<uint8_t*>(a.out) + row * row_bytes + column * element;
  }
};

// Calls `work` with the arguments' epilogue and kind of result as constants.
template <class Work>
void with_kinds(const LinearArguments& a, const Work& work) {
  const auto with_out = [&](auto epilogue) {
    if (a.out_kind == kFloat) return work(epilogue, std::integral_constant<int64_t, kFloat>());
    work(epilogue, std::integral_constant<int64_t, kBfloat16>());
  };
  if (a.epilogue == kPlain) return with_out(std::integral_constant<int64_t, kPlain>());
  if (a.epilogue == kSiluGated) return with_out(std::integral_constant<int64_t, kSiluGated>());
  with_out(std::integral_constant<int64_t, kGeluGated>());
}

}  // namespace
}  // namespace headrace
