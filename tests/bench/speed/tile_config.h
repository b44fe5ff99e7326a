// GCC 12's _tile_loadconfig says that it reads eight bytes, so the stores to the other 56 may come after it: a fault.
// Included before each of llama.cpp's files when it is built.
#pragma once
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>
#define _tile_loadconfig(config) __asm__ volatile("ldtilecfg %0" : : "m"(*(const char(*)[64])(config)) : "memory")
#endif
