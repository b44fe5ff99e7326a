#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "kernel.h"

namespace headrace {

// One group per source file, named kernels_<noun>_<set>.
extern const Entry kElementwisePortable[], kElementwiseAvx2[], kElementwiseAvx512[];
extern const Entry kLinearPortable[], kLinearAvx2[], kLinearAvx512[], kLinearAmx[];
extern const Entry kInt8Portable[], kInt8Avx2[], kInt8Avx512[], kInt8Amx[];
extern const Entry kGroupedPortable[], kGroupedAvx2[], kGroupedAvx512[], kGroupedAmx[];
extern const Entry kAttentionPortable[], kAttentionAvx2[], kAttentionAvx512[], kAttentionAmx[];
extern const Entry kSamplingPortable[], kSamplingAvx2[], kSamplingAvx512[];

namespace {

#if defined(__x86_64__)
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

// Skylake's, with the bfloat16 and int8 products that Cooper Lake and Zen 4 added.
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
}

bool has_amx_instructions() {
  unsigned a = 7, b = 0, c = 0, d = 0;
  __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25;
  return (d & kBf16) && (d & kTile) && (d & kInt8);
}

// Linux keeps a process from the tiles until it asks, once, for the room to save them.
bool has_amx() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  static const bool is_there = has_avx512() && has_amx_instructions() &&
                               syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return is_there;
}
#else
bool has_avx2() { return false; }
bool has_avx512() { return false; }
bool has_amx() { return false; }
#endif

bool always() { return true; }

}  // namespace

const std::vector<InstructionSet>& instruction_sets() {
  static const std::vector<InstructionSet> sets = {
#if defined(__x86_64__)
      {"amx", has_amx, {kLinearAmx, kInt8Amx, kGroupedAmx, kAttentionAmx}},
      {"avx512", has_avx512,
       {kElementwiseAvx512, kLinearAvx512, kInt8Avx512, kGroupedAvx512, kAttentionAvx512, kSamplingAvx512}},
      {"avx2", has_avx2, {kElementwiseAvx2, kLinearAvx2, kInt8Avx2, kGroupedAvx2, kAttentionAvx2, kSamplingAvx2}},
#endif
      {"portable", always,
       {kElementwisePortable, kLinearPortable, kInt8Portable, kGroupedPortable, kAttentionPortable,
        kSamplingPortable}},
  };
  return sets;
}

Kernel find_kernel(const char* name, int first_set) {
  const std::vector<InstructionSet>& sets = instruction_sets();
  for (size_t i = first_set; i < sets.size(); ++i) {
    if (!sets[i].is_there()) continue;
    for (const Entry* group : sets[i].groups)
      for (const Entry* entry = group; entry->name; ++entry)
        if (!std::strcmp(entry->name, name)) return entry->kernel;
  }
  return nullptr;
}

}  // namespace headrace
