// Linear layers over weights quantized in groups, on AVX512's products of bytes.
#include "grouped512.h"

namespace headrace {

extern const Entry kGroupedAvx512[] = {
    {"linear_q4", linear_grouped<PackedPanels, Q4>},
    {"linear_q4_zero", linear_grouped<PackedPanels, Q4Zero>},
    {"linear_q4_k", linear_grouped<PackedPanels, Q4K>},
    {"linear_q5", linear_grouped<PackedPanels, Q5>},
    {"linear_q6_k", linear_grouped<PackedPanels, Q6K>},
    {"linear_q8", linear_grouped<PackedPanels, Q8>},
    {nullptr, nullptr},
};

}  // namespace headrace
