// What a task of attention works on: its rows, tiles of keys, and the memory between its two products.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "attention_layout.h"

namespace headrace {
namespace {

constexpr int64_t kKeyTile = 128;  // keys; a multiple of every block size
constexpr int64_t kTaskRows = 32;
// The running maximum of a row that has seen no key: below any score, and finite, so that -inf less it is no NaN.
constexpr float kNoScore = -1e30f;
constexpr float kLog2E = 1.44269504f;  // scores are kept in powers of 2

// Consecutive rows of one sequence, for one KV head.
struct Task {
  int64_t seq, kv_head, first_row, num_rows;
};

// A task's rows among the step's tokens and heads.
struct Queries : Task {
  int64_t num_shared;
  int64_t first_token;     // of the step's, the sequence's first
  int64_t first_position;  // where it stands
  int64_t context_len;

  int64_t token(int64_t row) const { return first_token + (first_row + row) / num_shared; }
  int64_t head(int64_t row) const { return kv_head * num_shared + (first_row + row) % num_shared; }
  int64_t position(int64_t row) const { return first_position + (first_row + row) / num_shared; }
  // Whether other tasks have the same keys.
  bool is_one_of_several() const { return (context_len - first_position) * num_shared > kTaskRows; }
};

// The blocks of a tile, of one KV head, in a cache of T.
template <class T>
struct Blocks {
  const T* heads[kKeyTile / kGroup];
  int64_t num = 0;
};

// Where they are.
template <class T, class Layout>
struct PagedHeads {
  const T* const kv;
  const Layout layout;

  // The blocks from `first_key` on that are of one tile and before `end`.
  Blocks<T> tile(const Queries& queries, const int32_t* table, int64_t first_key, int64_t end) const {
    Blocks<T> blocks;
    for (int64_t key = first_key; key < std::min(end, first_key + kKeyTile); key += layout.block_size)
      blocks.heads[blocks.num++] = layout.head(kv, table[key / layout.block_size], queries.kv_head);
    return blocks;
  }
};

// Into the second-level cache.
inline void fetch_line(const void* line) {
  constexpr int kToRead = 0, kIntoSecondLevel = 2;
  __builtin_prefetch(line, kToRead, kIntoSecondLevel);
}

// What is fetched from memory, a few lines at a time, while other things are computed: a line of each head by turns, as
// the processor's own prefetching then runs ahead in all of them.
class Ahead {
 public:
  Ahead() = default;
  template <class T>
  Ahead(const Blocks<T>& blocks, int64_t num_bytes, bool is_of_next_task)
      : num_heads_(blocks.num), num_bytes_(num_bytes), is_of_next_task_(is_of_next_task) {
    std::copy_n(blocks.heads, blocks.num, heads_);
  }

  bool is_of_next_task() const { return is_of_next_task_; }
  int64_t num_lines() const { return num_heads_ * num_bytes_ / kLine; }

  void fetch(int64_t num_lines) {
    for (; num_lines > 0 && done_ < num_bytes_ && num_heads_; --num_lines) {
      fetch_line(static_cast<const uint8_t*>(heads_[at_]) + done_);
      if (++at_ == num_heads_) at_ = 0, done_ += kLine;
    }
  }

 private:
  static constexpr int64_t kLine = 64;

  const void* heads_[kKeyTile / kGroup];
  int64_t num_heads_ = 0, num_bytes_ = 0, done_ = 0, at_ = 0;
  bool is_of_next_task_ = false;
};

// Consecutive keys and their values: whole blocks.
struct KeyTile {
  int64_t first_key, num_keys, num_groups, num_blocks;
  const uint16_t* keys[kKeyTile / kGroup];    // of each group
  const uint16_t* values[kKeyTile / kGroup];  // of each block
  Ahead ahead;
};

// Which keys of a tile a row sees: [begin, end).
struct Visible {
  int64_t begin, end;
};

// What a task knows of its rows from tile to tile.
struct alignas(64) RowStates {
  float max[kTaskRows];      // of the scores so far, in powers of 2
  float rescale[kTaskRows];  // by what the newest maximum shrinks all that came before
  int64_t position[kTaskRows];
  Visible visible[kTaskRows];  // of the tile at hand
};

struct alignas(64) CacheLine {
  uint8_t bytes[64];
};

inline void reserve_bytes(std::vector<CacheLine>& memory, size_t num_bytes) {
  const size_t num_lines = (num_bytes + sizeof(CacheLine) - 1) / sizeof(CacheLine);
  if (num_lines > memory.size()) memory.resize(num_lines);
}

// A thread's memory. What two tiles are in at a time is there twice.
template <class Weight, class CacheMemory>
struct Scratch {
  std::vector<CacheLine> memory;
  CacheMemory cache;      // of tiles that are not read in place
  float* scores[2];       // [kTaskRows, kKeyTile]
  float* sums;            // [kTaskRows, head_dim]: of the values times their weights
  float* totals;          // [kTaskRows, 16]: of the weights, by lane
  Weight* weights[2];     // [kTaskRows, kKeyTile]
  uint16_t* q;            // [kTaskRows, head_dim]

  void reserve(int64_t head_dim, int64_t block_size) {
    constexpr int64_t kTile = kTaskRows * kKeyTile;
    const int64_t num_floats = 2 * kTile + kTaskRows * (head_dim + 16);
    const int64_t num_bytes = num_floats * sizeof(float) + 2 * kTile * sizeof(Weight) +
                              kTaskRows * head_dim * sizeof(uint16_t);
    reserve_bytes(memory, num_bytes);
    cache.reserve(head_dim, block_size);
    scores[0] = reinterpret_cast<float*>(memory.data());
    scores[1] = scores[0] + kTile;
    sums = scores[1] + kTile;
    totals = sums + kTaskRows * head_dim;
    weights[0] = reinterpret_cast<Weight*>(totals + kTaskRows * 16);
    weights[1] = weights[0] + kTile;
    q = reinterpret_cast<uint16_t*>(weights[1] + kTile);
  }
};

}  // namespace
}  // namespace headrace
