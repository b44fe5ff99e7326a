#include "int8_avx512.h"

namespace headrace {
namespace {

void linear_int8(const void* words, const Context& context) {
  share_int8<uint8_t>(arguments<LinearArguments>(words), context, kShift, multiply<StoredPanels>);
}

}  // namespace

extern const Entry kInt8Avx512[] = {{"linear_int8", linear_int8}, {nullptr, nullptr}};

}  // namespace headrace
