// Attention by products of bfloat16 pairs, and what comes before it.
#include "attention_rows512.h"

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

void attention(const void* words, const Context& context) {
  Attention<Avx512Attention>(arguments<AttentionArguments>(words), context.step).run(context.pool);
}

// One head of one token: normalised, if there is a weight, and rotated; store(i, elements i to i + 16).
template <class Store>
void rotate_head(const float* x, const float* norm, double eps, const float* cos_sin, int64_t dim, const Store& store) {
  __m512 factor = _mm512_set1_ps(1.0f);
  if (norm) {
    __m512 squares = _mm512_setzero_ps();
    for (int64_t i = 0; i < dim; i += 16) squares = _mm512_fmadd_ps(load_float(x + i), load_float(x + i), squares);
    const float mean = horizontal_sum(squares) / static_cast<float>(dim);
    factor = _mm512_set1_ps(1.0f / std::sqrt(mean + static_cast<float>(eps)));
  }
  const auto element = [&](int64_t i) {
    return norm ? _mm512_mul_ps(_mm512_mul_ps(load_float(x + i), factor), load_float(norm + i)) : load_float(x + i);
  };
  const int64_t half = dim / 2;
  for (int64_t i = 0; i < half; i += 16) {
    const __m512 first = element(i), second = element(half + i);
    const __m512 cos = load_float(cos_sin + i), sin = load_float(cos_sin + half + i);
    store(i, _mm512_fmsub_ps(first, cos, _mm512_mul_ps(second, sin)));
    store(half + i, _mm512_fmadd_ps(second, cos, _mm512_mul_ps(first, sin)));
  }
}

// Sixteen elements of one token, each beside the same element of its pair's other token.
void store_values(uint16_t* to, bool is_second, __m512 values) {
  const __m512i low = _mm512_cvtepu16_epi32(round_to_bfloat16(values));
  if (is_second)
    _mm512_mask_storeu_epi16(to - 1, 0xAAAAAAAA, _mm512_slli_epi32(low, 16));
  else
    _mm512_mask_storeu_epi16(to, 0x55555555, low);
}

void store_keys(uint16_t* to, __m512 keys) {
  alignas(32) uint16_t elements[16];
  store_bfloat16(elements, keys);
  for (int i = 0; i < 8; ++i) std::memcpy(to + i * kPairStride, elements + i * 2, 4);
}

void rotate_and_store_token(const RotateAndStoreArguments& a, const Step& step, int64_t token) {
  const Layout layout = layout_of(a);
  const int64_t dim = a.head_dim, block = step.slots[token] / a.block_size, offset = step.slots[token] % a.block_size;
  const float* cos_sin = a.table + step.positions[token] * dim;
  const float* x = a.qkv + token * a.qkv_stride;
  for (int64_t head = 0; head < a.num_heads; ++head, x += dim) {
    uint16_t* q = a.q + token * a.q_stride + head * dim;
    rotate_head(x, a.q_norm, a.eps, cos_sin, dim, [&](int64_t i, __m512 elements) { store_bfloat16(q + i, elements); });
  }
  for (int64_t head = 0; head < a.num_kv_heads; ++head, x += dim) {
    uint16_t* kv = layout.head(a.kv, block, head);
    rotate_head(x, a.k_norm, a.eps, cos_sin, dim,
                [&](int64_t i, __m512 elements) { store_keys(layout.key(kv, offset, i), elements); });
    const float* v = x + a.num_kv_heads * dim;
    for (int64_t i = 0; i < dim; i += 16) store_values(layout.value(kv, offset, i), offset % 2, load_float(v + i));
  }
}

void rotate_and_store(const void* words, const Context& context) {
  constexpr int64_t kTokens = 4;  // of a task
  const RotateAndStoreArguments& a = arguments<RotateAndStoreArguments>(words);
  const int64_t num_tokens = context.step.num_tokens;
  context.pool.run((num_tokens + kTokens - 1) / kTokens, [&](int64_t task) {
    for (int64_t token = task * kTokens; token < std::min(num_tokens, (task + 1) * kTokens); ++token)
      rotate_and_store_token(a, context.step, token);
  });
}

}  // namespace

extern const Entry kAttentionAvx512[] = {
    {"attention", attention}, {"rotate_and_store", rotate_and_store}, {nullptr, nullptr}};

}  // namespace headrace
