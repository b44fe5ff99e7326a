// What this machine can do at most: bytes read per second by all threads, and multiply-adds from registers.
// Reading is measured everywhere, the others where there are instructions. Without any for bf16 it becomes fp32.
#define _GNU_SOURCE
#include <immintrin.h>
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef float Vector __attribute__((vector_size(64)));

enum { kHugePage = 2 << 20, kRounds = 12, kChains = 12 };  // chains hide the latency of a multiply-add
static const size_t kBytes = (size_t)1 << 30;              // more than any cache holds
static const long kSteps = 8000000;
static volatile float sink;

static double read_once(const Vector* values) {
  double began = omp_get_wtime();
  float total = 0;
#pragma omp parallel reduction(+ : total)
  {
    size_t count = kBytes / sizeof(Vector) / omp_get_num_threads();
    const Vector* mine = values + count * omp_get_thread_num();
    Vector sums[4] = {{0}};
    for (size_t i = 0; i + 4 <= count; i += 4) {
      for (int j = 0; j < 4; j++) sums[j] += mine[i + j];
    }
    Vector sum = sums[0] + sums[1] + sums[2] + sums[3];
    for (int j = 0; j < 16; j++) total += sum[j];
  }
  sink = total;
  return omp_get_wtime() - began;
}

// Without huge pages a tenth of the time goes into finding pages.
static Vector* make_values(void) {
  Vector* values = aligned_alloc(kHugePage, kBytes);
  madvise(values, kBytes, MADV_HUGEPAGE);
#pragma omp parallel
  {
    size_t mine = kBytes / omp_get_num_threads();
    memset((char*)values + mine * omp_get_thread_num(), 0, mine);
  }
  return values;
}

static double read_gigabytes_per_second(void) {
  Vector* values = make_values();
  double best = 1e9;
  for (int i = 0; i < kRounds; i++) {
    double seconds = read_once(values);
    if (seconds < best) best = seconds;
  }
  free(values);
  return kBytes / best / 1e9;
}

// Named accumulators: the compiler would keep an array of them in memory.
#define EACH(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)
#define ZERO(i) Register r##i = {0};
#define KEEP "+v"(r0), "+v"(r1), "+v"(r2), "+v"(r3), "+v"(r4), "+v"(r5), "+v"(r6), "+v"(r7), "+v"(r8), "+v"(r9), \
             "+v"(r10), "+v"(r11)
#define PEAK(NAME, DO)                          \
  static double NAME(void) {                    \
    double began = omp_get_wtime();             \
    _Pragma("omp parallel") {                   \
      EACH(ZERO)                                \
      for (long step = 0; step < kSteps; step++) { \
        EACH(DO)                                \
        __asm__ volatile("" : KEEP);            \
      }                                         \
    }                                           \
    return kChains * (double)kSteps * omp_get_max_threads() / (omp_get_wtime() - began) / 1e9; \
  }

#ifdef __AVX512F__
typedef __m512i Register;
static Register one;
#define F32(i) __asm__("vfmadd231ps %1, %1, %0" : "+v"(r##i) : "v"(one));
#define BF16(i) __asm__("vdpbf16ps %1, %1, %0" : "+v"(r##i) : "v"(one));
#define INT8(i) __asm__("vpdpbusd %1, %1, %0" : "+v"(r##i) : "v"(one));
PEAK(f32_billions, F32)
#ifdef __AVX512BF16__
PEAK(bf16_billions, BF16)
#endif
#ifdef __AVX512VNNI__
PEAK(int8_billions, INT8)
#endif
#elif defined(__AVX2__) && defined(__FMA__)
typedef __m256i Register;
static Register one;
#define F32(i) __asm__("vfmadd231ps %1, %1, %0" : "+v"(r##i) : "v"(one));
#define INT8(i)                                                                                      \
  {                                                                                                  \
    Register pairs;                                                                                  \
    __asm__("vpmaddubsw %2, %2, %1\n vpmaddwd %2, %1, %1\n vpaddd %1, %0, %0" : "+v"(r##i), "=&v"(pairs) : "v"(one)); \
  }
PEAK(f32_billions, F32)
PEAK(int8_billions, INT8)
#endif

#if defined(__AMX_BF16__) && defined(__AMX_INT8__)
enum { kArchReqXcompPerm = 0x1023, kTileData = 18 };

typedef struct {
  uint8_t palette, start_row, reserved[14];
  uint16_t bytes_per_row[16];
  uint8_t rows[16];
} TileConfig;

static void configure_tiles(void) {
  TileConfig config = {.palette = 1};
  for (int i = 0; i < 8; i++) {
    config.bytes_per_row[i] = 64;
    config.rows[i] = 16;
  }
  __asm__ volatile("" : : "r"(&config) : "memory");  // the intrinsic says that it reads eight bytes only
  _tile_loadconfig(&config);
}

#define TILES(NAME, MULTIPLY)                                                        \
  static double NAME(void) {                                                         \
    long steps = kSteps / 16;                                                        \
    double began = omp_get_wtime();                                                  \
    _Pragma("omp parallel") {                                                        \
      configure_tiles();                                                             \
      _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);                    \
      _tile_zero(4); _tile_zero(5); _tile_zero(6); _tile_zero(7);                    \
      for (long step = 0; step < steps; step++) {                                    \
        MULTIPLY(0, 4, 6); MULTIPLY(1, 4, 7); MULTIPLY(2, 5, 6); MULTIPLY(3, 5, 7);  \
      }                                                                              \
      _tile_release();                                                               \
    }                                                                                \
    return 4.0 * steps * omp_get_max_threads() / (omp_get_wtime() - began) / 1e9;    \
  }
TILES(bf16_tiles_billions, _tile_dpbf16ps)
TILES(int8_tiles_billions, _tile_dpbssd)
#endif

int main(void) {
  double f32 = 0, bf16 = 0, int8 = 0;
#ifdef __AVX512F__
  f32 = f32_billions() * 16 * 2;  // multiply-adds of an instruction, each two operations
#ifdef __AVX512BF16__
  bf16 = bf16_billions() * 32 * 2;
#endif
#ifdef __AVX512VNNI__
  int8 = int8_billions() * 64 * 2;
#endif
#endif
#if !defined(__AVX512F__) && defined(__AVX2__) && defined(__FMA__)
  f32 = bf16 = f32_billions() * 8 * 2;
  int8 = int8_billions() * 32 * 2;
#endif
#if defined(__AMX_BF16__) && defined(__AMX_INT8__)
  if (syscall(SYS_arch_prctl, kArchReqXcompPerm, kTileData) == 0) {
    bf16 = bf16_tiles_billions() * 16 * 16 * 32 * 2;
    int8 = int8_tiles_billions() * 16 * 16 * 64 * 2;
  }
#endif
  printf("{\"read_gb_per_s\": %.2f, \"f32_gflops\": %.0f, \"bf16_gflops\": %.0f, \"int8_gops\": %.0f}\n",
         read_gigabytes_per_second(), f32, bf16, int8);
  return 0;
}
