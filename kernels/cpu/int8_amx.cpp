#include "int8_amx.h"

namespace headrace {
namespace {

void linear_int8(const void* words, const Context& context) {
  share_int8<int8_t>(arguments<LinearArguments>(words), context, 0, multiply<StoredPanels>);
}

}  // namespace

extern const Entry kInt8Amx[] = {{"linear_int8", linear_int8}, {nullptr, nullptr}};

}  // namespace headrace
