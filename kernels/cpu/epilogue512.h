// What becomes of sums over weights in bfloat16.
#pragma once
#include "linear.h"
#include "vector512.h"

namespace headrace {

// Results of so many columns are logits: megabytes, of which the caches would keep little until they are read.
constexpr int64_t kPastCachesColumns = 16384;

// Writes what a row of x and half a panel give, from their 32 sums. `bias` is of the half panel, or null.
inline void finish_half(const float* sums, const float* bias, int64_t epilogue, int64_t out_kind, bool is_past_caches,
                        uint8_t* out) {
  __m512 first = load_float(sums), second = load_float(sums + kGates);
  if (bias) {
    first = _mm512_add_ps(first, load_float(bias));
    second = _mm512_add_ps(second, load_float(bias + kGates));
  }
  auto* floats = reinterpret_cast<float*>(out);
  if (epilogue == kPlain && out_kind == kBfloat16) {
    store_bfloat16(reinterpret_cast<uint16_t*>(out), first, second);
  } else if (epilogue == kPlain && is_past_caches) {
    store_past_caches(floats, first);
    store_past_caches(floats + kGates, second);
  } else if (epilogue == kPlain) {
    store_float(floats, first);
    store_float(floats + kGates, second);
  } else {
    const __m512 gated = _mm512_mul_ps(epilogue == kSiluGated ? silu(first) : gelu(first), second);
    if (out_kind == kFloat) return store_float(floats, gated);
    store_bfloat16(reinterpret_cast<uint16_t*>(out), gated);
  }
}

}  // namespace headrace
