#pragma once
// The angles of a rotary embedding on a token grid, and its rotation. Whoever includes this is
// compiled without contraction to fused multiply-add: the bits are those of the other tables.
#include "kernels/cuda/common.cuh"
#include "kernels/rope.h"

namespace weft::cuda {

// A token's position on each axis.
struct GridPlace {
  unsigned frame, row, column;
};

struct Turns {
  const float2* table[3]{};  // [grid[axis], pairs[axis]]: cosines and sines
  unsigned pairs[3]{};
  unsigned plane = 1, columns = 1;  // tokens of a frame, of a row
  unsigned first_token = 0;

  // The place of a token, counted from the first.
  __device__ __forceinline__ GridPlace place(unsigned index) const {
    const unsigned token = first_token + index;
    return {token / plane, token % plane / columns, token % columns};
  }
  __device__ __forceinline__ float2 at(const GridPlace& place, unsigned pair) const {
    if (pair < pairs[0]) return table[0][static_cast<int64_t>(place.frame) * pairs[0] + pair];
    pair -= pairs[0];
    if (pair < pairs[1]) return table[1][static_cast<int64_t>(place.row) * pairs[1] + pair];
    return table[2][static_cast<int64_t>(place.column) * pairs[2] + pair - pairs[1]];
  }
};

inline Turns turns_of(const Rope& rope, int64_t first_token) {
  Turns turns{.plane = static_cast<unsigned>(rope.grid[1] * rope.grid[2]),
              .columns = static_cast<unsigned>(rope.grid[2]),
              .first_token = static_cast<unsigned>(first_token)};
  for (int axis = 0; axis < 3; ++axis) {
    turns.pairs[axis] = static_cast<unsigned>(rope.pairs[axis]);
    if (rope.table[axis])
      turns.table[axis] = reinterpret_cast<const float2*>(rope.table[axis].as<float>());
  }
  return turns;
}

// (a, b) -> (a c - b s, a s + b c)
__device__ __forceinline__ void rotate(float& a, float& b, float2 turn) {
  const float real = a * turn.x - b * turn.y;
  b = a * turn.y + b * turn.x;
  a = real;
}

}  // namespace weft::cuda
