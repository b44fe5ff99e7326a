// Who multiplies which weights, and their way from memory.
#pragma once
#include <immintrin.h>

#include <algorithm>

#include "linear.h"
#include "ranges.h"

namespace headrace {
namespace {

constexpr int64_t kLine = 64;  // bytes of a cache line

// A block of rows by half a panel.
struct Unit {
  int64_t block, half;
};

// Lines of memory, so many to be fetched beside each of some steps.
struct Fetch {
  const uint8_t* data;
  int64_t num_lines;

  void step() {
    for (const uint8_t* end = data + num_lines * kLine; data < end; data += kLine)
      _mm_prefetch(reinterpret_cast<const char*>(data), _MM_HINT_T1);
  }
};

// The units that one thread takes, one after the other, and their weights, fetched ahead of their use. Units are
// numbered block by block.
template <class Format>
class TileStream {
 public:
  TileStream(const Format& format, int64_t num_halves, Ranges& ranges)
      : format_(format), num_halves_(num_halves), ranges_(ranges) {
    claim();
  }

  bool has_next() const { return next_ >= 0; }

  // False when none is left.
  bool take(Unit& unit) {
    if (!is_claimed_) claim();
    is_claimed_ = false;
    unit = {next_ / num_halves_, next_ % num_halves_};
    return has_next();
  }

  // What to fetch beside so many steps, at most `num_lines` beside each: of the unit taken and of the one after it.
  Fetch next(int64_t num_steps, int64_t num_lines) {
    if (end_ - data_ < num_steps * num_lines * kLine && !is_claimed_) claim();
    const Fetch fetch{data_, std::min(num_lines, divide_up((end_ - data_) / kLine, num_steps))};
    data_ += fetch.num_lines * num_steps * kLine;
    return fetch;
  }

 private:
  void claim() {
    is_claimed_ = true;
    next_ = ranges_.take(Pool::thread());
    if (!has_next()) return;
    const int64_t half = next_ % num_halves_;
    if (end_ != format_.address(half)) data_ = format_.address(half);  // else the rest of the one before comes first
    end_ = format_.address(half + 1);
  }

  const Format& format_;
  const int64_t num_halves_;
  Ranges& ranges_;
  int64_t next_ = -1;              // the unit to be taken next, or taken last
  bool is_claimed_ = false;        // it is still to be taken
  const uint8_t* data_ = nullptr;  // fetched next
  const uint8_t* end_ = nullptr;   // of what is fetched
};

}  // namespace
}  // namespace headrace
