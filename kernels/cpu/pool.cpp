#include "pool.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

namespace headrace {
namespace {

// Long enough to see another thread's work without sleep, short enough to let a descheduled one have the core.
constexpr int kSpinsBeforeYield = 256;

// Makes what was stored past the caches visible before what is stored next.
void fence() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_sfence();
#endif
}

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

template <class Condition>
void spin_until(const Condition& is_so) {
  for (int spins = 1; !is_so(); ++spins) {
    relax();
    if (spins % kSpinsBeforeYield == 0) std::this_thread::yield();
  }
}

thread_local int this_thread = 0;

void sleep_while_zero(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, 0, nullptr, nullptr, 0);
}

void wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

Pool::Pool(int num_threads) {
  for (int i = 1; i < num_threads; ++i) threads_.emplace_back([this, i] { loop(i); });
}

Pool::~Pool() {
  is_stopping_.store(true);
  begin();
  for (std::thread& thread : threads_) thread.join();
}

int Pool::thread() { return this_thread; }

void Pool::begin() {
  if (threads_.empty()) return;
  is_awake_.store(1, std::memory_order_release);
  wake_all(is_awake_);
}

void Pool::end() { is_awake_.store(0, std::memory_order_release); }

void Pool::call(int64_t num_tasks, Call function, const void* context) {
  if (threads_.empty() || num_tasks <= 1) {
    for (int64_t i = 0; i < num_tasks; ++i) function(context, i);
    return;
  }
  function_ = function, context_ = context, num_tasks_ = num_tasks;
  num_unfinished_.store(num_tasks, std::memory_order_relaxed);
  num_left_.store(num_tasks, std::memory_order_release);
  while (do_one()) {
  }
  spin_until([this] { return num_unfinished_.load(std::memory_order_acquire) == 0; });
}

// Claims a task and does it; false when none is left.
bool Pool::do_one() {
  int64_t num_left = num_left_.load(std::memory_order_acquire);
  while (num_left > 0) {
    if (num_left_.compare_exchange_weak(num_left, num_left - 1, std::memory_order_acq_rel)) {
      function_(context_, num_tasks_ - num_left);
      fence();
      num_unfinished_.fetch_sub(1, std::memory_order_release);
      return true;
    }
  }
  return false;
}

void Pool::loop(int thread) {
  this_thread = thread;
  while (!is_stopping_.load(std::memory_order_acquire)) {
    while (do_one()) {
    }
    spin_until([this] {
      return num_left_.load(std::memory_order_acquire) > 0 || is_awake_.load(std::memory_order_acquire) == 0 ||
             is_stopping_.load(std::memory_order_acquire);
    });
    if (is_awake_.load(std::memory_order_acquire) == 0) sleep_while_zero(is_awake_);
  }
}

}  // namespace headrace
