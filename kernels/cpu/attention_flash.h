// Attention in one pass over the keys, for every instruction set: how the work is cut, and the running softmax.
//
// A task is a few query rows of one KV head. Row r of a sequence is query head r % num_shared of that KV head, at the
// sequence's query r / num_shared. Keys are taken in tiles at absolute positions, always in this order and whole, so a
// row's sums are the same whatever rows surround it: what it does not see has weight 0 and adds exact zeros.
#pragma once
#include <algorithm>
#include <cstring>
#include <vector>

#include "attention.h"
#include "attention_tiles.h"

namespace headrace {
namespace {

// `Set` computes what an instruction set is good at; see attention_generic.h.
template <class Set>
class Attention {
 public:
  Attention(const AttentionArguments& arguments, const Step& step)
      : a_(arguments), step_(step), layout_(layout_of(arguments)), num_shared_(a_.num_heads / a_.num_kv_heads) {}

  void run(Pool& pool) {
    cut();
    pool.run(static_cast<int64_t>(tasks_.size()), [&](int64_t i) { attend(queries_of(tasks_[i])); });
  }

 private:
  using Weight = typename Set::Weight;
  using Products = typename Set::Products;

  // The longest first, so that no thread is left with a long one at the end; lengths are told apart by powers of two.
  // The rows of one head follow each other: its keys and values stay in the cache of a core.
  void cut() {
    constexpr int kNumLengths = 64;
    std::vector<Task> by_length[kNumLengths];
    for (int64_t seq = 0; seq < step_.num_seqs; ++seq) {
      const int64_t num_rows = (step_.starts[seq + 1] - step_.starts[seq]) * num_shared_;
      std::vector<Task>& tasks = by_length[kNumLengths - 1 - __builtin_clzll(step_.context_lens[seq] | 1)];
      for (int64_t head = 0; head < a_.num_kv_heads; ++head)
        for (int64_t row = (num_rows - 1) / kTaskRows * kTaskRows; row >= 0; row -= kTaskRows)
          tasks.push_back({seq, head, row, std::min(kTaskRows, num_rows - row)});
    }
    for (int length = kNumLengths - 1; length >= 0; --length)
      tasks_.insert(tasks_.end(), by_length[length].begin(), by_length[length].end());
  }

  Queries queries_of(const Task& task) const {
    const int64_t first_token = step_.starts[task.seq], context_len = step_.context_lens[task.seq];
    const int64_t first_position = context_len - (step_.starts[task.seq + 1] - first_token);
    return {task, num_shared_, first_token, first_position, context_len};
  }

  // While the rows of one tile are weighed, `products` computes the next one's scores and adds the last one's values.
  void attend(const Queries& queries) const {
    static thread_local Scratch<Weight> scratch;
    scratch.reserve(a_.head_dim, a_.block_size);
    RowStates rows;
    prepare(queries, rows, scratch);
    Products products(scratch.q, queries.num_rows, a_.head_dim, a_.block_size, scratch.sums);

    const int64_t end = queries.position(queries.num_rows - 1) + 1;
    int64_t key = visible_from(queries.position(0)) / kKeyTile * kKeyTile;
    KeyTile last, tile, next = tile_of(queries, key, end, scratch);
    products.score(next, scratch.scores[0]);
    products.finish();
    int64_t parity = 0;
    for (bool is_first = true; key < end; key += kKeyTile, is_first = false, parity ^= 1) {
      last = tile, tile = next;
      if (!is_first) products.add(scratch.weights[parity ^ 1], last);
      if (key + kKeyTile < end) {
        next = tile_of(queries, key + kKeyTile, end, scratch);
        products.score(next, scratch.scores[parity ^ 1]);
      }
      weigh(queries, tile, parity, rows, products, scratch);
      products.finish();
      rescale(queries, rows, scratch.sums);
    }
    products.add(scratch.weights[parity ^ 1], tile);
    products.finish();
    divide(queries, scratch);
  }

  void prepare(const Queries& queries, RowStates& rows, Scratch<Weight>& scratch) const {
    for (int64_t row = 0; row < queries.num_rows; ++row) {
      const uint16_t* q = a_.q + queries.token(row) * a_.q_stride + queries.head(row) * a_.head_dim;
      std::memcpy(scratch.q + row * a_.head_dim, q, a_.head_dim * sizeof(uint16_t));
      rows.position[row] = queries.position(row);
    }
    std::fill_n(rows.max, kTaskRows, kNoScore);
    std::memset(scratch.sums, 0, kTaskRows * a_.head_dim * sizeof(float));
    std::memset(scratch.totals, 0, kTaskRows * kGroup * sizeof(float));
  }

  int64_t visible_from(int64_t position) const {
    return a_.sliding_window ? std::max<int64_t>(0, position + 1 - a_.sliding_window) : 0;
  }

  // The blocks that have keys [first_key, end) of one tile.
  KeyTile tile_of(const Queries& queries, int64_t first_key, int64_t end, Scratch<Weight>& scratch) const {
    KeyTile tile;
    tile.first_key = first_key, tile.num_groups = 0, tile.num_blocks = 0;
    const int32_t* table = step_.block_tables + queries.seq * step_.max_blocks;
    for (int64_t key = first_key; key < std::min(end, first_key + kKeyTile); key += a_.block_size) {
      const uint16_t* head = layout_.head(a_.kv, table[key / a_.block_size], queries.kv_head);
      for (int64_t offset = 0; offset < a_.block_size; offset += kGroup)
        tile.keys[tile.num_groups++] = layout_.group(head, offset);
      const uint16_t* values = layout_.values(head);
      const int64_t num_written = queries.context_len - key;
      const bool is_written = num_written >= a_.block_size;
      tile.values[tile.num_blocks++] = is_written ? values : copy_written(values, num_written, scratch);
    }
    tile.num_keys = tile.num_groups * kGroup;
    return tile;
  }

  // Slots past the context may hold anything, and no weight makes a NaN a zero.
  const uint16_t* copy_written(const uint16_t* values, int64_t num_written, Scratch<Weight>& scratch) const {
    uint16_t* copy = scratch.last_values;
    const int64_t num_whole = num_written / 2 * 2 * a_.head_dim;  // elements of pairs that are written
    std::memcpy(copy, values, num_whole * sizeof(uint16_t));
    std::memset(copy + num_whole, 0, (a_.block_size * a_.head_dim - num_whole) * sizeof(uint16_t));
    if (num_written % 2)
      for (int64_t i = 0; i < a_.head_dim; ++i) copy[num_whole + i * 2] = values[num_whole + i * 2];
    return copy;
  }

  void weigh(const Queries& queries, const KeyTile& tile, int64_t parity, RowStates& rows, Products& products,
             Scratch<Weight>& scratch) const {
    const float scale2 = static_cast<float>(a_.scale) * kLog2E;
    for (int64_t row = 0; row < queries.num_rows; ++row) {
      const int64_t begin = visible_from(rows.position[row]) - tile.first_key;
      const int64_t end = rows.position[row] + 1 - tile.first_key;
      rows.visible[row] = {std::max<int64_t>(0, begin), std::max<int64_t>(0, std::min(tile.num_keys, end))};
    }
    Set::raise_max(scratch.scores[parity], queries.num_rows, tile.num_keys, scale2, rows);
    for (int64_t row = 0; row < queries.num_rows; ++row) {
      Set::weigh(scratch.scores[parity] + row * kKeyTile, tile.num_keys, scale2, rows, row,
                 scratch.weights[parity] + row * kKeyTile, scratch.totals + row * kGroup);
      products.advance(row + 1, queries.num_rows);
    }
  }

  void rescale(const Queries& queries, const RowStates& rows, float* sums) const {
    for (int64_t row = 0; row < queries.num_rows; ++row)
      if (rows.rescale[row] != 1.0f) Set::rescale(sums + row * a_.head_dim, a_.head_dim, rows.rescale[row]);
  }

  void divide(const Queries& queries, const Scratch<Weight>& scratch) const {
    for (int64_t row = 0; row < queries.num_rows; ++row) {
      uint16_t* out = a_.out + queries.token(row) * a_.out_stride + queries.head(row) * a_.head_dim;
      Set::divide(scratch.sums + row * a_.head_dim, scratch.totals + row * kGroup, a_.head_dim, out);
    }
  }

  const AttentionArguments& a_;
  const Step& step_;
  const Layout layout_;
  const int64_t num_shared_;
  std::vector<Task> tasks_;
};

}  // namespace
}  // namespace headrace
