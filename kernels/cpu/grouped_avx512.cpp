// Linear layers over weights quantized in groups, on AVX512's products of bytes.
#include "grouped512.h"

namespace headrace {

extern const Entry* const kGroupedAvx512 = kLinearGrouped<PackedPanel>;

}  // namespace headrace
