// Tiles of keys and values in a cache of bfloat16, which are read where they are.
#pragma once
#include <algorithm>
#include <cstring>
#include <vector>

#include "attention.h"
#include "attention_tiles.h"

namespace headrace {
namespace {

class Bfloat16Cache {
 public:
  using Tile = KeyTile;

  struct Memory {
    std::vector<CacheLine> last_values;  // bfloat16 [block_size / 2, head_dim, 2]: zeros past the context
    Blocks<uint16_t> coming;             // the next task's first tile
    bool is_fetching;

    void reserve(int64_t head_dim, int64_t block_size) {
      reserve_bytes(last_values, block_size * head_dim * sizeof(uint16_t));
    }
  };

  explicit Bfloat16Cache(const AttentionArguments& a)
      : heads_{static_cast<const uint16_t*>(a.kv), {a.block_stride, a.block_size, a.head_dim}} {}

  // Keys that several tasks have are in a cache when most of these come.
  void begin(const Queries& queries, Memory& memory) const { memory.is_fetching = !queries.is_one_of_several(); }

  // The keys from `first_key` on are what the thread is likely to read after this task.
  void expect(const Queries& queries, const int32_t* table, int64_t first_key, Memory& memory) const {
    memory.coming = heads_.tile(queries, table, first_key, queries.context_len);
  }

  // The blocks from `first_key` on that are of one tile and before `end`.
  Tile tile(const Queries& queries, const int32_t* table, int64_t first_key, int64_t end, Memory& memory) const {
    const Blocks<uint16_t> blocks = heads_.tile(queries, table, first_key, end);
    Tile tile;
    tile.first_key = first_key, tile.num_groups = 0, tile.num_blocks = blocks.num;
    for (int64_t block = 0; block < blocks.num; ++block) {
      const uint16_t* head = blocks.heads[block];
      for (int64_t offset = 0; offset < layout().block_size; offset += kGroup)
        tile.keys[tile.num_groups++] = layout().group(head, offset);
      const uint16_t* values = layout().values(head);
      const int64_t num_written = queries.context_len - (first_key + block * layout().block_size);
      const bool is_written = num_written >= layout().block_size;
      tile.values[block] = is_written ? values : copy_written(values, num_written, memory);
    }
    tile.num_keys = tile.num_groups * kGroup;
    if (!memory.is_fetching) return tile;
    const Blocks<uint16_t> following = heads_.tile(queries, table, first_key + kKeyTile, end);
    const bool is_last = following.num == 0;
    const int64_t head_bytes = layout().head_size() * int64_t{sizeof(uint16_t)};
    tile.ahead = {is_last ? memory.coming : following, head_bytes, is_last};
    return tile;
  }

  template <class Pace>
  void load_keys(Tile& /*tile*/, Memory& /*memory*/, const Pace& /*pace*/) const {}
  void load_values(Tile& /*tile*/, Memory& /*memory*/) const {}
  static void scale_scores(const Tile& /*tile*/, float* /*scores*/, int64_t /*num_rows*/) {}
  static const float* const* value_scales(const Tile& /*tile*/) { return nullptr; }

 private:
  const Layout& layout() const { return heads_.layout; }

  // Slots past the context may hold anything, and no weight makes a NaN a zero.
  const uint16_t* copy_written(const uint16_t* values, int64_t num_written, Memory& memory) const {
    uint16_t* copy = reinterpret_cast<uint16_t*>(memory.last_values.data());
    const int64_t head_dim = layout().head_dim;
    const int64_t num_whole = num_written / 2 * 2 * head_dim;  // elements of pairs that are written
    std::memcpy(copy, values, num_whole * sizeof(uint16_t));
    std::memset(copy + num_whole, 0, (layout().block_size * head_dim - num_whole) * sizeof(uint16_t));
    if (num_written % 2)
      for (int64_t i = 0; i < head_dim; ++i) copy[num_whole + i * 2] = values[num_whole + i * 2];
    return copy;
  }

  const PagedHeads<uint16_t, Layout> heads_;
};

}  // namespace
}  // namespace headrace
