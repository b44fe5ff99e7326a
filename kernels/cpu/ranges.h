// Sharing tasks among threads so that each has its own: what it reads and writes is in its own cache, and no other's.
#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

#include "pool.h"

namespace headrace {
namespace {

// Consecutive tasks, a range of them for each thread, which then helps the others with theirs.
class Ranges {
 public:
  // Ranges of one size.
  Ranges(int64_t num_tasks, int64_t num_threads) : ranges_(num_threads) {
    for (int64_t i = 0; i < num_threads; ++i) set(i, i * num_tasks / num_threads, (i + 1) * num_tasks / num_threads);
  }

  // Of so many tasks each.
  explicit Ranges(const std::vector<int64_t>& num_tasks) : ranges_(num_tasks.size()) {
    int64_t begin = 0;
    for (size_t i = 0; i < num_tasks.size(); begin += num_tasks[i++]) set(i, begin, begin + num_tasks[i]);
  }

  // The next task of a thread: -1 when none is left.
  int64_t take(int64_t thread) {
    const int64_t num_ranges = static_cast<int64_t>(ranges_.size());
    for (int64_t i = 0; i < num_ranges; ++i) {
      Range& range = ranges_[(thread + i) % num_ranges];
      if (range.next.load(std::memory_order_relaxed) >= range.end) continue;
      const int64_t task = range.next.fetch_add(1, std::memory_order_relaxed);
      if (task < range.end) return task;
    }
    return -1;
  }

  // Where the range ends that a task is of.
  int64_t end_of(int64_t task) const {
    for (const Range& range : ranges_)
      if (task < range.end) return range.end;
    return task;
  }

  // task(i) for every i, each once; returns when all are done.
  template <class Task>
  void run(Pool& pool, const Task& task) {
    pool.run(static_cast<int64_t>(ranges_.size()), [&](int64_t) {
      for (int64_t i; (i = take(Pool::thread())) >= 0;) task(i);
    });
  }

 private:
  struct alignas(64) Range {
    std::atomic<int64_t> next;  // the first that nobody has taken
    int64_t end;
  };

  void set(size_t i, int64_t begin, int64_t end) {
    ranges_[i].next.store(begin, std::memory_order_relaxed);
    ranges_[i].end = end;
  }

  std::vector<Range> ranges_;
};

}  // namespace
}  // namespace headrace
