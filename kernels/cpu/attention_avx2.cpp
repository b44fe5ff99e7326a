// Attention by products of floats, to which queries are widened once for each task, and keys and values as they are
// read.
#include "attention_rows256.h"
#include "products256.h"
#include "row_groups.h"
#include "rotate256.h"

namespace headrace {
namespace {

constexpr int64_t kColumns = 16;  // of a tile of products: keys of a group, elements of values

// The two products of `Attention`, each done when it is asked for.
class Avx2Products {
 public:
  Avx2Products(const uint16_t* q, int64_t num_rows, int64_t head_dim, int64_t block_size, float* sums)
      : num_rows_(num_rows), head_dim_(head_dim), block_size_(block_size), sums_(sums) {
    static thread_local std::vector<CacheLine> memory;
    reserve_bytes(memory, kTaskRows * head_dim * sizeof(float));
    q_ = reinterpret_cast<float*>(memory.data());
    for (int64_t row = 0; row < num_rows; row += kMostRows)
      widen_side_by_side(q + row * head_dim, head_dim, rows_from(row), head_dim, q_ + row * head_dim);
  }

  // What comes next is fetched meanwhile.
  void score(const KeyTile& tile, float* scores) {
    ahead_ = tile.ahead;
    num_fetched_ = ahead_.num_lines() / tile.num_groups + 1;
    for (int64_t row = 0; row < num_rows_; row += kMostRows)
      with_rows(rows_from(row), [&](auto rows) { score_rows<rows>(row, tile, scores + row * kKeyTile); });
  }

  void add(const float* weights, const KeyTile& tile) const {
    for (int64_t row = 0; row < num_rows_; row += kMostRows)
      with_rows(rows_from(row),
                [&](auto rows) { add_rows<rows>(weights + row * kKeyTile, tile, sums_ + row * head_dim_); });
  }

  void advance(int64_t /*done*/, int64_t /*all*/) const {}
  void finish() const {}

 private:
  int64_t rows_from(int64_t row) const { return std::min<int64_t>(kMostRows, num_rows_ - row); }

  template <int kRows>
  void score_rows(int64_t row, const KeyTile& tile, float* scores) {
    constexpr int kTiles = tiles_together<kRows>();
    int64_t group = 0;
    for (; group + kTiles <= tile.num_groups; group += kTiles)
      score_groups<kRows, kTiles>(q_ + row * head_dim_, tile.keys + group, scores + group * kGroup);
    if (group < tile.num_groups)
      score_groups<kRows, 1>(q_ + row * head_dim_, tile.keys + group, scores + group * kGroup);
  }

  template <int kRows, int kTiles>
  void score_groups(const float* q, const uint16_t* const* keys, float* scores) {
    ahead_.fetch(kTiles * num_fetched_);
    Sums<kRows, 2 * kTiles> total;
    for (int64_t i = 0; i < head_dim_; i += 2, q += 2 * kRows)
      total.add([&](int j) { return load_pairs(keys[j / 2] + i / 2 * kPairStride + j % 2 * 16); },
                [&](int row) { return q + row; }, [&](int row) { return q + kRows + row; });
    total.store(scores, kKeyTile);
  }

  // A head's dimensions are a multiple of 32.
  template <int kRows>
  void add_rows(const float* weights, const KeyTile& tile, float* sums) const {
    constexpr int kTiles = tiles_together<kRows>();
    for (int64_t i = 0; i < head_dim_; i += kTiles * kColumns)
      add_elements<kRows, 2 * kTiles>(weights, tile, i, sums + i);
  }

  template <int kRows, int kVectors>
  void add_elements(const float* weights, const KeyTile& tile, int64_t first, float* sums) const {
    Sums<kRows, kVectors> total(sums, head_dim_);
    for (int64_t block = 0; block < tile.num_blocks; ++block) {
      const uint16_t* values = tile.values[block] + first * 2;
      for (int64_t token = 0; token < block_size_; token += 2, weights += 2, values += 2 * head_dim_)
        total.add([&](int j) { return load_pairs(values + j * 16); },
                  [&](int row) { return weights + row * kKeyTile; },
                  [&](int row) { return weights + row * kKeyTile + 1; });
    }
    total.store(sums, head_dim_);
  }

  const int64_t num_rows_, head_dim_, block_size_;
  float* const sums_;
  Ahead ahead_;
  int64_t num_fetched_ = 0;  // lines, beside each group of keys
  float* q_;  // of kMostRows rows, or of what is left of them, at a time: [head_dim][rows]
};

struct Avx2Attention : Rows256 {
  using Products = Avx2Products;
};

template <class Cache>
void attention(const void* words, const Context& context) {
  Attention<Avx2Attention, Cache>(arguments<AttentionArguments>(words), context.step).run(context.pool);
}

}  // namespace

extern const Entry kAttentionAvx2[] = {{"attention", attention<Bfloat16Cache>},
                                       {"attention_int8", attention<Int8Cache<Avx2Attention>>},
                                       {"rotate_and_store", rotate_and_store<Rotation256, Bfloat16Writer>},
                                       {"rotate_and_store_int8", rotate_and_store<Rotation256, Int8Writer>},
                                       {nullptr, nullptr}};

}  // namespace headrace
