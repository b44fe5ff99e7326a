// The threads of a step: they spin between its operations and sleep between steps.
#pragma once
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace headrace {

class Pool {
 public:
  // `num_threads` counts the caller of `run`, which computes with the others.
  explicit Pool(int num_threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int num_threads() const { return static_cast<int>(threads_.size()) + 1; }

  // The number of the thread that calls this: from 1 on those of a pool, 0 any other.
  static int thread();

  // Between `begin` and `end` the threads take part in what is run; at other times the caller is alone.
  void begin();
  void end();

  // task(i) for every i in [0, num_tasks), each once, in any order and on any thread; returns when all are done.
  template <class Task>
  void run(int64_t num_tasks, const Task& task) {
    call(num_tasks, [](const void* context, int64_t i) { (*static_cast<const Task*>(context))(i); }, &task);
  }

 private:
  using Call = void (*)(const void* context, int64_t task);

  void call(int64_t num_tasks, Call function, const void* context);
  bool do_one();
  void loop(int thread);

  std::vector<std::thread> threads_;
  // Of the call under way: written before `num_left_`, and again only when `num_unfinished_` is nought, so whoever has
  // claimed a task reads what belongs to it. Nobody waits for a thread that has claimed none: it may not be running.
  Call function_ = nullptr;
  const void* context_ = nullptr;
  int64_t num_tasks_ = 0;
  alignas(64) std::atomic<int64_t> num_left_{0};        // that nobody has claimed
  alignas(64) std::atomic<int64_t> num_unfinished_{0};
  alignas(64) std::atomic<uint32_t> is_awake_{0};
  std::atomic<bool> is_stopping_{false};
};

}  // namespace headrace
