// Attention by the tile registers.
#include "amx.h"
#include "attention_rows512.h"
#include "widen_vbmi.h"

namespace headrace {
namespace {

// Tiles 0 to 3 are sums; the others are the sides of the two products.
constexpr int kQuery = 4, kKeys = 5, kWeights = 6, kValues = 7;

void configure(int64_t num_rows, int64_t block_size) {
  TileShapes shapes;
  for (int i = 0; i < 8; ++i) shapes.set(i, num_rows, kTileBytes);
  shapes.rows[kKeys] = kTileRows;
  // A product goes over the tokens of a block: pairs of them are rows of the values.
  shapes.rows[kValues] = static_cast<uint8_t>(block_size / 2);
  shapes.bytes[kWeights] = static_cast<uint16_t>(block_size * 2);
  shapes.apply();
}

// The intrinsics of GCC 12 take no constants, and do not tell the compiler that they read memory.
template <int kTile>
void load_tile(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
}

template <int kTile>
void store_tile(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kTile) : "memory");
}

template <int kTile>
void zero_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}

// Tile kTo += tile kLeft of pairs times tile kRight.
template <int kTo, int kLeft, int kRight>
void add_products() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kTo), "i"(kLeft), "i"(kRight));
}

// The two products of `Attention`, in steps of up to four tile products: the rows' arithmetic goes on meanwhile.
//
// A batch is 2 tiles of rows, the second perhaps empty, by 2 tiles of columns: tiles 0 and 1 above 2 and 3. A step of
// the scores is 32 elements of the head's, a step of the values is one block.
class AmxProducts {
 public:
  AmxProducts(const uint16_t* q, int64_t num_rows, int64_t head_dim, int64_t block_size, float* sums)
      : q_(q), head_dim_(head_dim), block_size_(block_size), sums_(sums), has_two_(num_rows > kTileRows) {
    configure(std::min<int64_t>(num_rows, kTileRows), block_size);
  }

  // Starts scores = q . keys, not yet scaled.
  void score(const KeyTile& tile, float* scores) {
    scored_ = &tile, scores_ = scores;
    scoring_ = {(tile.num_groups + 1) / 2, head_dim_ / kElements};
    num_steps_ += scoring_.num_steps();
    ahead_ = tile.ahead;
    // What the next task begins with is fetched until this one ends: beside the values of this tile, and of the one
    // before it.
    const int64_t values = head_dim_ / kElements * tile.num_blocks;
    const int64_t later = ahead_.is_of_next_task() ? (is_first_ ? values : 2 * values) : 0;
    num_fetched_ = ahead_.num_lines() / (num_steps_ - num_done_ + later) + 1;
    is_first_ = false;
  }

  // Starts sums += weights @ values.
  void add(const uint16_t* weights, const KeyTile& tile) {
    added_ = &tile, weights_ = weights;
    adding_ = {head_dim_ / kElements, tile.num_blocks};
    num_steps_ += adding_.num_steps();
  }

  // Does what is due when `done` of `all` parts of the other work are done.
  void advance(int64_t done, int64_t all) {
    while (num_done_ * all < num_steps_ * done) step();
  }

  void finish() {
    while (num_done_ < num_steps_) step();
    num_done_ = num_steps_ = 0;
  }

 private:
  static constexpr int64_t kElements = kTileBytes / 2;

  struct Batches {
    int64_t num_batches = 0, num_inner = 0;  // batches, and steps of each
    int64_t batch = 0, inner = 0;            // the next step

    int64_t num_steps() const { return num_batches * num_inner; }
    bool is_done() const { return batch == num_batches; }
    bool is_first() const { return inner == 0; }
    // True when that was a batch's last step.
    bool advance() {
      if (++inner < num_inner) return false;
      ++batch, inner = 0;
      return true;
    }
  };

  void step() {
    ++num_done_;
    ahead_.fetch(num_fetched_);
    if (!adding_.is_done())
      has_two_ ? add_step<true>() : add_step<false>();
    else
      has_two_ ? score_step<true>() : score_step<false>();
  }

  template <bool kHasTwo>
  void score_step() {
    const int64_t group = scoring_.batch * 2, element = scoring_.inner * kElements;
    const uint16_t* first = scored_->keys[group] + element * kGroup;
    const uint16_t* second = scored_->keys[std::min(group + 1, scored_->num_groups - 1)] + element * kGroup;
    if (scoring_.is_first()) zero_sums<kHasTwo>();
    multiply<kHasTwo, kQuery, kKeys>(q_ + element, head_dim_ * 2, first, second, kTileBytes);
    if (scoring_.advance()) store_sums<kHasTwo>(scores_ + group * kGroup, kKeyTile);
  }

  template <bool kHasTwo>
  void add_step() {
    float* sums = sums_ + adding_.batch * kElements;
    const uint16_t* values = added_->values[adding_.inner] + adding_.batch * kElements * 2;
    if (adding_.is_first()) load_sums<kHasTwo>(sums, head_dim_);
    multiply<kHasTwo, kWeights, kValues>(weights_ + adding_.inner * block_size_, kKeyTile * 2, values,
                                         values + kElements, head_dim_ * 4);
    if (adding_.advance()) store_sums<kHasTwo>(sums, head_dim_);
  }

  // Strides in bytes.
  template <bool kHasTwo, int kLeft, int kRight>
  static void multiply(const uint16_t* left, int64_t left_stride, const uint16_t* right, const uint16_t* next_right,
                       int64_t right_stride) {
    load_tile<kLeft>(left, left_stride);
    load_tile<kRight>(right, right_stride);
    add_products<0, kLeft, kRight>();
    if constexpr (kHasTwo) {
      load_tile<kRight>(next_right, right_stride);
      add_products<1, kLeft, kRight>();
      load_tile<kLeft>(left + kTileRows * left_stride / 2, left_stride);
      add_products<3, kLeft, kRight>();
      load_tile<kRight>(right, right_stride);
      add_products<2, kLeft, kRight>();
    } else {
      load_tile<kRight>(next_right, right_stride);
      add_products<1, kLeft, kRight>();
    }
  }

  template <bool kHasTwo>
  static void zero_sums() {
    zero_tile<0>(), zero_tile<1>();
    if constexpr (kHasTwo) zero_tile<2>(), zero_tile<3>();
  }

  // Between rows are `stride` floats.
  template <bool kHasTwo>
  static void load_sums(const float* from, int64_t stride) {
    load_tile<0>(from, stride * 4), load_tile<1>(from + 16, stride * 4);
    from += kTileRows * stride;
    if constexpr (kHasTwo) load_tile<2>(from, stride * 4), load_tile<3>(from + 16, stride * 4);
  }

  template <bool kHasTwo>
  static void store_sums(float* to, int64_t stride) {
    store_tile<0>(to, stride * 4), store_tile<1>(to + 16, stride * 4);
    to += kTileRows * stride;
    if constexpr (kHasTwo) store_tile<2>(to, stride * 4), store_tile<3>(to + 16, stride * 4);
  }

  const uint16_t* const q_;
  const int64_t head_dim_, block_size_;
  float* const sums_;
  const bool has_two_;
  const KeyTile* scored_ = nullptr;
  const KeyTile* added_ = nullptr;
  const uint16_t* weights_ = nullptr;
  float* scores_ = nullptr;
  Batches scoring_, adding_;
  Ahead ahead_;
  int64_t num_done_ = 0, num_steps_ = 0;
  int64_t num_fetched_ = 0;  // lines, at every step
  bool is_first_ = true;     // no tile was scored before
};

struct AmxAttention : Rows512 {
  using Products = AmxProducts;

  static constexpr auto widen_keys = WidenVbmi::widen_keys;
  static constexpr auto widen_values = WidenVbmi::widen_values;
};

template <class Cache>
void attention(const void* words, const Context& context) {
  Attention<AmxAttention, Cache>(arguments<AttentionArguments>(words), context.step).run(context.pool);
}

}  // namespace

extern const Entry kAttentionAmx[] = {{"attention", attention<Bfloat16Cache>},
                                      {"attention_int8", attention<Int8Cache<AmxAttention>>},
                                      {nullptr, nullptr}};

}  // namespace headrace
