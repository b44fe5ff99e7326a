#include "int4_512.h"
#include "int8_avx512.h"

namespace headrace {
namespace {

void linear_int4(const void* words, const Context& context) {
  const auto& a = arguments<LinearArguments>(words);
  const int64_t num_rows = num_rows_of(a.extent, context.step);
  if (num_rows <= kFewRows) return linear_few(a, context, num_rows);
  multiply_int8<UnpackedPanels>(a, context);
}

}  // namespace

extern const Entry kInt4Avx512[] = {{"linear_int4", linear_int4}, {nullptr, nullptr}};

}  // namespace headrace
