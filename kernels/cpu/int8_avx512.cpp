#include "int8_avx512.h"

namespace headrace {
namespace {

void linear_int8(const void* words, const Context& context) {
  multiply_int8<StoredPanels>(arguments<LinearArguments>(words), context);
}

}  // namespace

extern const Entry kInt8Avx512[] = {{"linear_int8", linear_int8}, {nullptr, nullptr}};

}  // namespace headrace
