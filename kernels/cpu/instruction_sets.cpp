#include <sys/syscall.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <cstring>

#include "kernel.h"

namespace headrace {

// One group per source file, or two, named k<Noun><Set>.
extern const Entry kElementwisePortable[], kElementwiseAvx2[], kElementwiseAvx512[];
extern const Entry kLinearPortable[], kLinearAvx2[], kLinearAvx512[], kLinearAmx[];
extern const Entry kInt8Portable[], kInt8Avx2[], kInt8Avx512[], kInt8Amx[];
extern const Entry kInt4Portable[], kInt4Avx2[], kInt4Avx512[], kInt4Amx[];
extern const Entry *const kGroupedPortable, *const kGroupedAvx2, *const kGroupedAvx512, *const kGroupedAmx;
extern const Entry *const kGroupedEmbeddingPortable, *const kGroupedEmbeddingAvx2;
extern const Entry kAttentionPortable[], kAttentionAvx2[], kAttentionAvx512[], kAttentionAmx[];
extern const Entry kExpertsPortable[];
extern const Entry kSamplingPortable[], kSamplingAvx2[], kSamplingAvx512[];

namespace {

#if defined(__x86_64__)
struct Features {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

bool has_all(unsigned found, unsigned wanted) { return (found & wanted) == wanted; }

// All zeros where the processor does not have the leaf. Not every compiler's library knows `__builtin_cpu_supports`.
Features features(unsigned leaf, unsigned part) {
  Features found;
  __get_cpuid_count(leaf, part, &found.a, &found.b, &found.c, &found.d);
  return found;
}

// Whether Linux saves the registers of these kinds between one process and the next.
bool are_saved(unsigned kinds) {
  constexpr unsigned kTells = 1u << 27;
  if (!has_all(features(1, 0).c, kTells)) return false;
  unsigned a, d;
  __asm__("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
  return has_all(a, kinds);
}

bool has_avx2() {
  constexpr unsigned kFma = 1u << 12, kF16c = 1u << 29, kAvx2 = 1u << 5, kYmm = 0x6;
  return are_saved(kYmm) && has_all(features(1, 0).c, kFma | kF16c) && has_all(features(7, 0).b, kAvx2);
}

// Skylake's, with the bfloat16 and int8 products that Cooper Lake and Zen 4 added.
bool has_avx512() {
  constexpr unsigned kF = 1u << 16, kDq = 1u << 17, kBw = 1u << 30, kVl = 1u << 31;
  constexpr unsigned kVnni = 1u << 11, kBf16 = 1u << 5, kZmm = 0xE6;
  const Features base = features(7, 0);
  return has_avx2() && are_saved(kZmm) && has_all(base.b, kF | kDq | kBw | kVl) && has_all(base.c, kVnni) &&
         base.a >= 1 && has_all(features(7, 1).a, kBf16);
}

// And the shuffles of bytes that every processor with tiles has.
bool has_amx_instructions() {
  constexpr unsigned kVbmi = 1u << 1, kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25;
  const Features base = features(7, 0);
  return has_all(base.c, kVbmi) && has_all(base.d, kBf16 | kTile | kInt8);
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
      {"amx", has_amx, {kLinearAmx, kInt8Amx, kInt4Amx, kGroupedAmx, kAttentionAmx}},
      {"avx512", has_avx512,
       {kElementwiseAvx512, kLinearAvx512, kInt8Avx512, kInt4Avx512, kGroupedAvx512, kAttentionAvx512,
        kSamplingAvx512}},
      {"avx2", has_avx2,
       {kElementwiseAvx2, kLinearAvx2, kInt8Avx2, kInt4Avx2, kGroupedAvx2, kGroupedEmbeddingAvx2, kAttentionAvx2,
        kSamplingAvx2}},
#endif
      {"portable", always,
       {kElementwisePortable, kLinearPortable, kInt8Portable, kInt4Portable, kGroupedPortable,
        kGroupedEmbeddingPortable, kAttentionPortable, kExpertsPortable, kSamplingPortable}},
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
