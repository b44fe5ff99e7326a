// Tiles of keys and values in a cache of int8. They become bfloat16, which holds every int8 exactly, before their
// product; what a token's are multiplied by goes into the scores, and into the weights before these are rounded.
#pragma once
#include <algorithm>
#include <atomic>
#include <vector>

#include "attention.h"
#include "attention_tiles.h"

namespace headrace {
namespace {

// From `Int8Layout` to `Layout`: the keys of a group of tokens, and whole values, by what an instruction set does with
// two rows, Set::widen_pairs.
template <class Set>
struct WidensPairs {
  static void widen_keys(const int8_t* from, int64_t head_dim, uint16_t* to) {
    for (int64_t i = 0; i < head_dim; i += 2, from += 2 * kGroup, to += kPairStride)
      Set::widen_pairs(from, from + kGroup, kGroup, to);
  }

  static void widen_values(const int8_t* from, int64_t num_tokens, int64_t head_dim, uint16_t* to) {
    for (int64_t token = 0; token < num_tokens; token += 2, from += 2 * head_dim, to += 2 * head_dim)
      Set::widen_pairs(from, from + head_dim, head_dim, to);
  }
};

// `Set` widens and scales; see attention_generic.h.
template <class Set>
class Int8Cache {
 public:
  struct Tile : KeyTile {
    Blocks<int8_t> blocks, following;  // and those of the next tile, which are fetched meanwhile
    const float* key_scales[kKeyTile / kGroup];    // of each group, [16]
    const float* value_scales[kKeyTile / kGroup];  // the same
  };

  // A thread's tiles in bfloat16. They are kept for the next task where it has the same keys.
  struct Memory {
    std::vector<CacheLine> lines;
    std::vector<int64_t> held_keys, held_values;  // up to which key there are those of a tile, in each slot
    int64_t call = 0, seq = 0, kv_head = 0;       // whose they are
    int64_t head_dim, block_size;
    float* last_scales;  // [block_size]: zeros past the context
    Blocks<int8_t> coming;  // the next task's first tile

    void reserve(int64_t head_dim, int64_t block_size) { this->head_dim = head_dim, this->block_size = block_size; }

    void hold(int64_t num_slots) {
      reserve_bytes(lines, 2 * num_slots * size() * sizeof(uint16_t) + block_size * sizeof(float));
      last_scales = reinterpret_cast<float*>(keys(2 * num_slots));
      held_keys.assign(num_slots, 0), held_values.assign(num_slots, 0);
    }

    int64_t num_slots() const { return static_cast<int64_t>(held_keys.size()); }
    int64_t size() const { return kKeyTile * head_dim; }
    // bfloat16 [kKeyTile, head_dim], as `Layout` has those of a block.
    uint16_t* keys(int64_t slot) { return reinterpret_cast<uint16_t*>(lines.data()) + slot * size(); }
    uint16_t* values(int64_t slot) { return keys(num_slots() + slot); }
  };

  explicit Int8Cache(const AttentionArguments& a)
      : heads_{static_cast<const int8_t*>(a.kv), {a.block_stride, a.block_size, a.head_dim}}, call_(++num_calls) {}

  // Keeps what the memory holds where the task before had the same keys, as those of one head of a chunk do.
  void begin(const Queries& queries, Memory& memory) const {
    const bool is_one = queries.is_one_of_several();
    if (is_one && memory.call == call_ && memory.seq == queries.seq && memory.kv_head == queries.kv_head)
      return;
    memory.call = call_, memory.seq = queries.seq, memory.kv_head = queries.kv_head;
    memory.hold(is_one ? std::max(kNumWorking, kKeptBytes / (2 * memory.size() * 2)) : kNumWorking);
  }

  // The keys from `first_key` on are what the thread is likely to read after this task.
  void expect(const Queries& queries, const int32_t* table, int64_t first_key, Memory& memory) const {
    memory.coming = heads_.tile(queries, table, first_key, queries.context_len);
  }

  // The blocks from `first_key` on that are of one tile and before `end`.
  Tile tile(const Queries& queries, const int32_t* table, int64_t first_key, int64_t end, Memory& memory) const {
    Tile tile;
    tile.first_key = first_key, tile.num_groups = 0;
    tile.blocks = heads_.tile(queries, table, first_key, end), tile.num_blocks = tile.blocks.num;
    for (int64_t block = 0; block < tile.num_blocks; ++block) {
      const int8_t* head = tile.blocks.heads[block];
      const float* value_scales = layout().value_scales(head);
      const int64_t num_written = queries.context_len - (first_key + block * layout().block_size);
      if (num_written < layout().block_size) value_scales = copy_written(value_scales, num_written, memory);
      for (int64_t offset = 0; offset < layout().block_size; offset += kGroup, ++tile.num_groups) {
        tile.key_scales[tile.num_groups] = layout().key_scales(head) + offset;
        tile.value_scales[tile.num_groups] = value_scales + offset;
      }
    }
    tile.num_keys = tile.num_groups * kGroup;
    tile.following = heads_.tile(queries, table, first_key + kKeyTile, end);
    if (tile.following.num == 0) tile.following = memory.coming;
    // Weights are made of two groups at a time. What a group that is not there gets is read by no product.
    if (tile.num_groups % 2) tile.value_scales[tile.num_groups] = tile.value_scales[tile.num_groups - 1];
    return tile;
  }

  // Calls pace(done, all) between parts: other work goes on meanwhile.
  template <class Pace>
  void load_keys(Tile& tile, Memory& memory, const Pace& pace) const {
    const int64_t slot = slot_of(tile, memory), size = layout().block_size * layout().head_dim;
    for (int64_t group = 0; group < tile.num_groups; ++group)
      tile.keys[group] = memory.keys(slot) + group * kGroup * layout().head_dim;
    if (!claim(memory.held_keys[slot], tile)) return;
    for (int64_t block = 0; block < tile.following.num || block < tile.num_blocks; ++block) {
      if (block < tile.following.num) fetch(layout().group(tile.following.heads[block], 0), size);
      if (block >= tile.num_blocks) continue;
      uint16_t* to = memory.keys(slot) + block * size;
      for (int64_t offset = 0; offset < layout().block_size; offset += kGroup, to += kGroup * layout().head_dim)
        Set::widen_keys(layout().group(tile.blocks.heads[block], offset), layout().head_dim, to);
      pace(block + 1, tile.num_blocks);
    }
  }

  void load_values(Tile& tile, Memory& memory) const {
    const int64_t slot = slot_of(tile, memory), size = layout().block_size * layout().head_dim;
    for (int64_t block = 0; block < tile.num_blocks; ++block) tile.values[block] = memory.values(slot) + block * size;
    if (!claim(memory.held_values[slot], tile)) return;
    for (int64_t block = 0; block < tile.following.num || block < tile.num_blocks; ++block) {
      if (block < tile.following.num)
        fetch(layout().value(tile.following.heads[block], 0), layout().head_size() - size);
      if (block >= tile.num_blocks) continue;
      const int8_t* values = layout().value(tile.blocks.heads[block], 0);
      Set::widen_values(values, layout().block_size, layout().head_dim, memory.values(slot) + block * size);
    }
  }

  static void scale_scores(const Tile& tile, float* scores, int64_t num_rows) {
    for (int64_t row = 0; row < num_rows; ++row)
      Set::scale_scores(scores + row * kKeyTile, tile.num_groups, tile.key_scales);
  }

  static const float* const* value_scales(const Tile& tile) { return tile.value_scales; }

 private:
  static constexpr int64_t kNumWorking = 1;                // slots for tiles that are not kept
  static constexpr int64_t kKeptBytes = int64_t{1} << 20;  // of keys and values; fetching more costs what widening does

  const Int8Layout& layout() const { return heads_.layout; }

  // The first tiles of a sequence are kept.
  int64_t slot_of(const Tile& tile, const Memory& memory) const {
    const int64_t index = tile.first_key / kKeyTile, num_kept = memory.num_slots() - kNumWorking;
    return index < num_kept ? index : num_kept;
  }

  // False where a slot holds the tile already, or more of it than this task sees.
  static bool claim(int64_t& held, const Tile& tile) {
    const int64_t end = tile.first_key + tile.num_keys;
    if (end <= held && held <= tile.first_key + kKeyTile) return false;
    held = end;
    return true;
  }

  static void fetch(const int8_t* from, int64_t num_bytes) {
    for (int64_t i = 0; i < num_bytes; i += sizeof(CacheLine)) fetch_line(from + i);
  }

  // Slots past the context may hold anything, and no weight makes a NaN a zero. An int8 is none.
  const float* copy_written(const float* scales, int64_t num_written, Memory& memory) const {
    std::copy_n(scales, num_written, memory.last_scales);
    std::fill_n(memory.last_scales + num_written, layout().block_size - num_written, 0.0f);
    return memory.last_scales;
  }

  static std::atomic<int64_t> num_calls;

  const PagedHeads<int8_t, Int8Layout> heads_;
  const int64_t call_;  // tells one attention from all others: in the next step the same block is another's
};

template <class Set>
std::atomic<int64_t> Int8Cache<Set>::num_calls{0};

}  // namespace
}  // namespace headrace
