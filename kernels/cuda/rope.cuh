#pragma once
// The angles of a rotary embedding on a token grid, and its rotation. Whoever includes this is
// compiled without contraction to fused multiply-add: the bits are those of the other tables.
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/divisor.cuh"
#include "kernels/rope.h"

namespace weft::cuda {

// A token's cosines and sines begin at these places in the tables of the axes, less the pairs that
// come before the axis.
struct GridPlace {
  int first[3];
};

struct Turns {
  const float2* table[3]{};  // [grid[axis], pairs[axis]]: cosines and sines
  int pairs[3]{};
  Divisor plane, columns;  // tokens of a frame, of a row
  unsigned first_token = 0;

  // The place of a token, counted from the first.
  __device__ __forceinline__ GridPlace place(unsigned index) const {
    const unsigned token = first_token + index, in_frame = plane.remainder(token);
    const int frame = static_cast<int>(plane.quotient(token)),
              row = static_cast<int>(columns.quotient(in_frame)),
              column = static_cast<int>(columns.remainder(in_frame));
    return {{frame * pairs[0], row * pairs[1] - pairs[0], column * pairs[2] - pairs[0] - pairs[1]}};
  }
  __device__ __forceinline__ float2 at(const GridPlace& place, int pair) const {
    if (pair < pairs[0]) return table[0][place.first[0] + pair];
    if (pair < pairs[0] + pairs[1]) return table[1][place.first[1] + pair];
    return table[2][place.first[2] + pair];
  }
};

inline Turns turns_of(const Rope& rope, int64_t first_token) {
  Turns turns{.plane = Divisor(rope.grid[1] * rope.grid[2]),
              .columns = Divisor(rope.grid[2]),
              .first_token = static_cast<unsigned>(first_token)};
  for (int axis = 0; axis < 3; ++axis) {
    turns.pairs[axis] = rope.pairs[axis];
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
