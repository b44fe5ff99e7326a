// What the attention kernels of every instruction set are asked. They share one layout of a block's keys and values.
#pragma once
#include "kernel.h"

namespace headrace {

// A layer's part of block b begins at element b * block_stride of kv. It has 2 * block_size * num_kv_heads * head_dim
// bfloat16; for the kernels named `_int8` as many int8, and a float for the keys and one for the values of each head of
// a token. What lies where in it is the business of these kernels alone: blocks are only ever copied whole.
struct RotateAndStoreArguments {
  const uint16_t* qkv;  // bfloat16 [tokens, (num_heads + 2 * num_kv_heads) * head_dim]
  int64_t qkv_stride;
  const float* q_norm;  // [head_dim] or null: RMSNorm of each head before it is rotated
  const float* k_norm;
  double eps;
  const float* table;   // [positions, 2, head_dim / 2]: cosines, sines
  uint16_t* q;          // bfloat16 [tokens, num_heads * head_dim]
  int64_t q_stride;
  void* kv;
  int64_t block_stride, block_size;
  int64_t num_heads, num_kv_heads, head_dim;
};

struct AttentionArguments {
  const uint16_t* q;
  int64_t q_stride;
  const void* kv;
  int64_t block_stride, block_size;
  int64_t num_heads, num_kv_heads, head_dim;
  int64_t sliding_window;  // positions that a query sees, its own among them; 0: all before it
  double scale;            // of the scores
  uint16_t* out;           // bfloat16 [tokens, num_heads * head_dim]
  int64_t out_stride;
};

}  // namespace headrace
