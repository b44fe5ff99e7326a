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
#include "attention_bfloat16.h"
#include "attention_int8.h"
#include "ranges.h"

namespace headrace {
namespace {

// `Set` computes what an instruction set is good at; see attention_generic.h. `Cache` finds the keys and values.
template <class Set, class Cache>
class Attention {
 public:
  Attention(const AttentionArguments& arguments, const Step& step)
      : a_(arguments), step_(step), cache_(arguments), num_shared_(a_.num_heads / a_.num_kv_heads) {}

  void run(Pool& pool) {
    Ranges ranges(cut(pool.num_threads()));
    ranges.run(pool, [&](int64_t i) {
      const int64_t next = i + 1 < ranges.end_of(i) ? i + 1 : i;  // what the thread is likely to do after it
      attend(queries_of(tasks_[i]), queries_of(tasks_[next]));
    });
  }

 private:
  using Products = typename Set::Products;
  using Tile = typename Cache::Tile;
  using Memory = Scratch<typename Set::Weight, typename Cache::Memory>;

  // Fills `tasks_`, thread by thread; returns how many each has. The longest come first, so that no thread is left with
  // a long one at the end; lengths are told apart by powers of two. The rows of one head follow each other on one
  // thread: its keys and values stay in the cache of a core.
  std::vector<int64_t> cut(int64_t num_threads) {
    constexpr int kNumLengths = 64;
    std::vector<std::vector<Task>> tasks(num_threads * kNumLengths);
    for (int64_t seq = 0; seq < step_.num_seqs; ++seq) {
      const int64_t num_rows = (step_.starts[seq + 1] - step_.starts[seq]) * num_shared_;
      const int64_t length = kNumLengths - 1 - __builtin_clzll(step_.context_lens[seq] | 1);
      for (int64_t head = 0; head < a_.num_kv_heads; ++head) {
        std::vector<Task>& of_thread = tasks[thread_of(seq, head, num_threads) * kNumLengths + length];
        for (int64_t row = (num_rows - 1) / kTaskRows * kTaskRows; row >= 0; row -= kTaskRows)
          of_thread.push_back({seq, head, row, std::min(kTaskRows, num_rows - row)});
      }
    }
    std::vector<int64_t> num_tasks(num_threads);
    for (int64_t thread = 0; thread < num_threads; ++thread)
      for (int length = kNumLengths - 1; length >= 0; --length) {
        const std::vector<Task>& some = tasks[thread * kNumLengths + length];
        tasks_.insert(tasks_.end(), some.begin(), some.end());
        num_tasks[thread] += static_cast<int64_t>(some.size());
      }
    return num_tasks;
  }

  // Heads are shared evenly, where that goes of each sequence, else of all of them.
  int64_t thread_of(int64_t seq, int64_t head, int64_t num_threads) const {
    if (a_.num_kv_heads % num_threads == 0) return head * num_threads / a_.num_kv_heads;
    return (seq * a_.num_kv_heads + head) % num_threads;
  }

  Queries queries_of(const Task& task) const {
    const int64_t first_token = step_.starts[task.seq], context_len = step_.context_lens[task.seq];
    const int64_t first_position = context_len - (step_.starts[task.seq + 1] - first_token);
    return {task, num_shared_, first_token, first_position, context_len};
  }

  // While the rows of one tile are weighed, `products` computes the next one's scores and adds the last one's values.
  void attend(const Queries& queries, const Queries& coming) const {
    static thread_local Memory scratch;
    scratch.reserve(a_.head_dim, a_.block_size);
    RowStates rows;
    cache_.begin(queries, scratch.cache);
    cache_.expect(coming, table_of(coming), first_key_of(coming), scratch.cache);
    prepare(queries, rows, scratch);
    Products products(scratch.q, queries.num_rows, a_.head_dim, a_.block_size, scratch.sums);

    const int64_t end = queries.position(queries.num_rows - 1) + 1;
    int64_t key = first_key_of(queries);
    Tile last, next = tile_of(queries, key, end, scratch), tile = next;
    score(products, next, scratch, 0);
    products.finish();
    int64_t parity = 0;
    for (bool is_first = true; key < end; key += kKeyTile, is_first = false, parity ^= 1) {
      last = tile, tile = next;
      if (!is_first) add(products, last, scratch, parity ^ 1);
      if (key + kKeyTile < end) {
        next = tile_of(queries, key + kKeyTile, end, scratch);
        score(products, next, scratch, parity ^ 1);
      }
      weigh(queries, tile, parity, rows, products, scratch);
      products.finish();
      rescale(queries, rows, scratch.sums);
    }
    add(products, tile, scratch, parity ^ 1);
    products.finish();
    divide(queries, scratch);
  }

  void prepare(const Queries& queries, RowStates& rows, Memory& scratch) const {
    for (int64_t row = 0; row < queries.num_rows; ++row) {
      const uint16_t* q = a_.q + queries.token(row) * a_.q_stride + queries.head(row) * a_.head_dim;
      std::memcpy(scratch.q + row * a_.head_dim, q, a_.head_dim * sizeof(uint16_t));
      rows.position[row] = queries.position(row);
    }
    std::fill_n(rows.max, kTaskRows, kNoScore);
    std::memset(scratch.sums, 0, queries.num_rows * a_.head_dim * sizeof(float));
    std::memset(scratch.totals, 0, queries.num_rows * kGroup * sizeof(float));
  }

  int64_t visible_from(int64_t position) const {
    return a_.sliding_window ? std::max<int64_t>(0, position + 1 - a_.sliding_window) : 0;
  }

  // Of the first tile that any of them sees.
  int64_t first_key_of(const Queries& queries) const {
    return visible_from(queries.position(0)) / kKeyTile * kKeyTile;
  }

  Tile tile_of(const Queries& queries, int64_t first_key, int64_t end, Memory& scratch) const {
    return cache_.tile(queries, table_of(queries), first_key, end, scratch.cache);
  }

  const int32_t* table_of(const Queries& queries) const { return step_.block_tables + queries.seq * step_.max_blocks; }

  void score(Products& products, Tile& tile, Memory& scratch, int64_t parity) const {
    cache_.load_keys(tile, scratch.cache, [&](int64_t done, int64_t all) { products.advance(done, all); });
    products.score(tile, scratch.scores[parity]);
  }

  void add(Products& products, Tile& tile, Memory& scratch, int64_t parity) const {
    cache_.load_values(tile, scratch.cache);
    products.add(scratch.weights[parity], tile);
  }

  void weigh(const Queries& queries, const Tile& tile, int64_t parity, RowStates& rows, Products& products,
             Memory& scratch) const {
    const float scale2 = static_cast<float>(a_.scale) * kLog2E;
    for (int64_t row = 0; row < queries.num_rows; ++row) {
      const int64_t begin = visible_from(rows.position[row]) - tile.first_key;
      const int64_t end = rows.position[row] + 1 - tile.first_key;
      rows.visible[row] = {std::max<int64_t>(0, begin), std::max<int64_t>(0, std::min(tile.num_keys, end))};
    }
    Cache::scale_scores(tile, scratch.scores[parity], queries.num_rows);
    Set::raise_max(scratch.scores[parity], queries.num_rows, tile.num_keys, scale2, rows);
    for (int64_t row = 0; row < queries.num_rows; ++row) {
      Set::weigh(scratch.scores[parity] + row * kKeyTile, tile.num_keys, scale2, rows, row, Cache::value_scales(tile),
                 scratch.weights[parity] + row * kKeyTile, scratch.totals + row * kGroup);
      products.advance(row + 1, queries.num_rows);
    }
  }

  void rescale(const Queries& queries, const RowStates& rows, float* sums) const {
    for (int64_t row = 0; row < queries.num_rows; ++row)
      if (rows.rescale[row] != 1.0f) Set::rescale(sums + row * a_.head_dim, a_.head_dim, rows.rescale[row]);
  }

  void divide(const Queries& queries, const Memory& scratch) const {
    for (int64_t row = 0; row < queries.num_rows; ++row) {
      uint16_t* out = a_.out + queries.token(row) * a_.out_stride + queries.head(row) * a_.head_dim;
      Set::divide(scratch.sums + row * a_.head_dim, scratch.totals + row * kGroup, a_.head_dim, out);
    }
  }

  const AttentionArguments& a_;
  const Step& step_;
  const Cache cache_;
  const int64_t num_shared_;
  std::vector<Task> tasks_;
};

}  // namespace
}  // namespace headrace
