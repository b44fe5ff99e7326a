// Sharing rows among threads where that pays.
#pragma once
#include <algorithm>

#include "pool.h"

namespace headrace {

// A task should take some microseconds: handing one to a thread costs the better part of one.
constexpr int64_t kElementsPerTask = 16384;

// function(row) for every row of `dim` elements, several rows a task; few rows are not shared at all.
template <class Function>
void share_rows(Pool& pool, int64_t num_rows, int64_t dim, const Function& function) {
  const int64_t rows_per_task = (kElementsPerTask + dim - 1) / dim;
  const int64_t num_tasks = (num_rows + rows_per_task - 1) / rows_per_task;
  pool.run(num_tasks, [&](int64_t task) {
    const int64_t end = std::min(num_rows, (task + 1) * rows_per_task);
    for (int64_t row = task * rows_per_task; row < end; ++row) function(row);
  });
}

}  // namespace headrace
