// Attention by products of bfloat16 pairs, and what comes before it.
#include "attention_rows512.h"
#include "rotate512.h"

namespace headrace {
namespace {

// sums + a * b by pairs. The intrinsic lets GCC 12 keep the sums in memory.
inline __m512 add_products(__m512 sums, __m512i a, __m512i b) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sums) : "v"(a), "v"(b));
  return sums;
}

inline __m512i load_pairs(const uint16_t* x) { return _mm512_loadu_si512(x); }

inline __m512i broadcast_pair(const uint16_t* x) {
  int32_t pair;
  std::memcpy(&pair, x, sizeof pair);
  return _mm512_set1_epi32(pair);
}

// The scores of 4 groups of keys, or fewer, for kRows rows.
template <int kRows, int kGroups>
void score_groups(const uint16_t* q, int64_t head_dim, const uint16_t* const* keys, float* scores) {
  __m512 sums[kRows][kGroups];
  for (int r = 0; r < kRows; ++r)
    for (int g = 0; g < kGroups; ++g) sums[r][g] = _mm512_setzero_ps();
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    __m512i key[kGroups];
    for (int g = 0; g < kGroups; ++g) key[g] = load_pairs(keys[g] + i * kPairStride);
    for (int r = 0; r < kRows; ++r) {
      const __m512i query = broadcast_pair(q + r * head_dim + i * 2);
      for (int g = 0; g < kGroups; ++g) sums[r][g] = add_products(sums[r][g], query, key[g]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int g = 0; g < kGroups; ++g) store_float(scores + r * kKeyTile + g * kGroup, sums[r][g]);
}

// The sums of 16 * kVectors elements of the values, for kRows rows.
template <int kRows, int kVectors>
void add_elements(const uint16_t* weights, int64_t head_dim, int64_t block_size, const KeyTile& tile, int64_t first,
                  float* sums) {
  __m512 sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) sum[r][v] = load_float(sums + r * head_dim + first + v * 16);
  for (int64_t block = 0; block < tile.num_blocks; ++block) {
    const uint16_t* weight = weights + block * block_size;
    for (int64_t token = 0; token < block_size; token += 2) {
      __m512i value[kVectors];
      for (int v = 0; v < kVectors; ++v)
        value[v] = load_pairs(tile.values[block] + token * head_dim + (first + v * 16) * 2);
      for (int r = 0; r < kRows; ++r) {
        const __m512i pair = broadcast_pair(weight + r * kKeyTile + token);
        for (int v = 0; v < kVectors; ++v) sum[r][v] = add_products(sum[r][v], pair, value[v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) store_float(sums + r * head_dim + first + v * 16, sum[r][v]);
}

// Calls f<kRows>(first row) until all rows are done, with as many at a time as the registers hold.
template <class F>
void for_rows(int64_t num_rows, const F& f) {
  int64_t row = 0;
  for (; row + 6 <= num_rows; row += 6) f(std::integral_constant<int, 6>(), row);
  switch (num_rows - row) {
    case 1: return f(std::integral_constant<int, 1>(), row);
    case 2: return f(std::integral_constant<int, 2>(), row);
    case 3: return f(std::integral_constant<int, 3>(), row);
    case 4: return f(std::integral_constant<int, 4>(), row);
    case 5: return f(std::integral_constant<int, 5>(), row);
  }
}

// The two products of `Attention`, each done when it is asked for.
class Avx512Products {
 public:
  Avx512Products(const uint16_t* q, int64_t num_rows, int64_t head_dim, int64_t block_size, float* sums)
      : q_(q), num_rows_(num_rows), head_dim_(head_dim), block_size_(block_size), sums_(sums) {}

  void score(const KeyTile& tile, float* scores) const {
    for_rows(num_rows_, [&](auto rows, int64_t row) {
      const uint16_t* q = q_ + row * head_dim_;
      float* to = scores + row * kKeyTile;
      int64_t group = 0;
      for (; group + 4 <= tile.num_groups; group += 4)
        score_groups<rows, 4>(q, head_dim_, tile.keys + group, to + group * kGroup);
      for (; group < tile.num_groups; ++group)
        score_groups<rows, 1>(q, head_dim_, tile.keys + group, to + group * kGroup);
    });
  }

  void add(const uint16_t* weights, const KeyTile& tile) const {
    for_rows(num_rows_, [&](auto rows, int64_t row) {
      const uint16_t* weight = weights + row * kKeyTile;
      float* sums = sums_ + row * head_dim_;
      int64_t i = 0;
      for (; i + 64 <= head_dim_; i += 64) add_elements<rows, 4>(weight, head_dim_, block_size_, tile, i, sums);
      if (i < head_dim_) add_elements<rows, 2>(weight, head_dim_, block_size_, tile, i, sums);
    });
  }

  void advance(int64_t /*done*/, int64_t /*all*/) const {}
  void finish() const {}

 private:
  const uint16_t* const q_;
  const int64_t num_rows_, head_dim_, block_size_;
  float* const sums_;
};

struct Avx512Attention : Rows512 {
  using Products = Avx512Products;
};

template <class Cache>
void attention(const void* words, const Context& context) {
  Attention<Avx512Attention, Cache>(arguments<AttentionArguments>(words), context.step).run(context.pool);
}

}  // namespace

extern const Entry kAttentionAvx512[] = {{"attention", attention<Bfloat16Cache>},
                                         {"attention_int8", attention<Int8Cache<Avx512Attention>>},
                                         {"rotate_and_store", rotate_and_store<Rotation512, Bfloat16Writer>},
                                         {"rotate_and_store_int8", rotate_and_store<Rotation512, Int8Writer>},
                                         {nullptr, nullptr}};

}  // namespace headrace
