// Where a token's keys and values lie in a layer's part of a block: one layout for every instruction set.
//
// A KV head has its keys, then its values, in one piece. Everything here has internal linkage: each source file compiles
// it with its own instruction set.
#pragma once
#include <cstdint>

namespace headrace {
namespace {

constexpr int64_t kGroup = 16;      // tokens whose keys lie beside each other
constexpr int64_t kPairStride = 32;  // elements between one pair of elements of a group's keys and the next

// In bfloat16 both are the right-hand sides of products of pairs:
// keys [block_size / 16 groups][head_dim / 32][16 pairs of elements][16 tokens][2 elements],
// values [block_size / 2 pairs of tokens][head_dim][2 tokens].
struct Layout {
  int64_t block_stride, block_size, head_dim;

  int64_t head_size() const { return 2 * block_size * head_dim; }
  template <class T>
  T* head(T* kv, int64_t block, int64_t kv_head) const {
    return kv + block * block_stride + kv_head * head_size();
  }
  // Of the keys of one group of 16 tokens, `offset` being that of its first token within the block.
  template <class T>
  T* group(T* head, int64_t offset) const {
    return head + offset * head_dim;
  }
  template <class T>
  T* values(T* head) const {
    return head + block_size * head_dim;
  }
  // Element i of a token's key, i even, and after it element i + 1. Steps of 2 in i are steps of kPairStride.
  template <class T>
  T* key(T* head, int64_t offset, int64_t i) const {
    return group(head, offset / kGroup * kGroup) + i / 2 * kPairStride + offset % kGroup * 2;
  }
  // Element i of a token's value. Steps of 1 in i are steps of 2.
  template <class T>
  T* value(T* head, int64_t offset, int64_t i) const {
    return values(head) + offset / 2 * 2 * head_dim + i * 2 + offset % 2;
  }
};

// In int8 the two halves of a pair lie in rows of their own, so that whole vectors of them become bfloat16:
// keys [block_size / 16 groups][head_dim][16 tokens], values [block_size tokens][head_dim], and what they are multiplied
// by, as float: [block_size] for the keys, [block_size] for the values.
struct Int8Layout {
  int64_t block_stride, block_size, head_dim;

  int64_t head_size() const { return 2 * block_size * (head_dim + static_cast<int64_t>(sizeof(float))); }
  template <class T>
  T* head(T* kv, int64_t block, int64_t kv_head) const {
    return kv + block * block_stride + kv_head * head_size();
  }
  template <class T>
  T* group(T* head, int64_t offset) const {
    return head + offset * head_dim;
  }
  // A token's key. Steps of 1 in its elements are steps of kGroup.
  int8_t* key(int8_t* head, int64_t offset) const {
    return group(head, offset / kGroup * kGroup) + offset % kGroup;
  }
  // A token's value, and those of the tokens after it.
  template <class T>
  T* value(T* head, int64_t offset) const {
    return head + (block_size + offset) * head_dim;
  }
  const float* key_scales(const int8_t* head) const {
    return reinterpret_cast<const float*>(head + 2 * block_size * head_dim);
  }
  const float* value_scales(const int8_t* head) const { return key_scales(head) + block_size; }
  float* key_scales(int8_t* head) const { return reinterpret_cast<float*>(head + 2 * block_size * head_dim); }
  float* value_scales(int8_t* head) const { return key_scales(head) + block_size; }
};

}  // namespace
}  // namespace headrace
