// How weights in bfloat16 lie in memory: halves of panels, [n / 32][k / 32][2 tiles][16 pairs of columns][16 rows][2].
#pragma once
#include "linear.h"

namespace headrace {
namespace {

constexpr int64_t kTileColumns = 16;                    // rows of the weight, columns of the result
constexpr int64_t kStepColumns = 32;                    // of x, whose part of half a panel lies together
constexpr int64_t kPairOfTile = kTileColumns * 2;       // elements of a tile in a pair of columns of x
constexpr int64_t kTile = kTileColumns * kStepColumns;  // elements
constexpr int64_t kStep = 2 * kTile;                    // elements of half a panel in a step's columns

inline const uint16_t* half_panel(const uint8_t* weight, int64_t k, int64_t half) {
  return reinterpret_cast<const uint16_t*>(weight) + half * kHalf * k;
}

}  // namespace
}  // namespace headrace
