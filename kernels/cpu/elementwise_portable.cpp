#define HEADRACE_SET portable
#include "elementwise_generic.h"

namespace headrace {
namespace {

// Copies are as fast as they can be on every machine: they are the C library's.
void select_rows(const void* words, const Context& context) {
  const auto& a = arguments<SelectRowsArguments>(words);
  share_rows(context.pool, context.step.num_rows, a.dim, [&](int64_t row) {
    const uint16_t* x = a.x + context.step.rows[row] * a.x_stride;
    std::memcpy(a.y + row * a.y_stride, x, a.dim * sizeof *x);
  });
}

}  // namespace

extern const Entry kElementwisePortable[] = {{"rms_norm", portable::rms_norm},
                                             {"add_rms_norm", portable::add_rms_norm},
                                             {"select_rows", select_rows},
                                             {nullptr, nullptr}};

}  // namespace headrace
