#pragma once
// Rotary position embedding (Su et al. 2021) over three axes (frame, row, column), interleaved
// pairs (x[2j], x[2j+1]), as Wan uses it.
#include <array>

#include "kernels/stream.h"

namespace weft {

// Angles of a token grid. Token t of the grid (frame-major, then row, then column) has position
// (start[0] + f, start[1] + h, start[2] + w); negative positions are legal.
struct Rope {
  std::array<int64_t, 3> grid{};   // tokens along frame, row, column
  std::array<int64_t, 3> start{};  // global position of token 0
  std::array<int, 3> pairs{};      // complex pairs per axis; they sum to E / 2
  // cos and sin per axis, for positions start[a] .. start[a] + grid[a] - 1: [grid[a], pairs[a], 2]
  // f32, from f64 angles.
  std::array<Tensor, 3> table;
};

// The tables for head size `head_dim`: the axes get head_dim - 4 (head_dim / 6), 2 (head_dim / 6),
// 2 (head_dim / 6) dimensions; omega_j = theta^(-2j/d) with each axis' own d.
Rope make_rope(std::array<int64_t, 3> grid, std::array<int64_t, 3> start, int head_dim,
               double theta = 10000.0);

// Rotates rows that stand for grid tokens first_token .. first_token + n - 1.
// x, out [n, A, E] f32 or bf16, arithmetic f32; may alias exactly; rows may be strided.
void apply_rope(Stream& stream, const TensorView& x, const Rope& rope, int64_t first_token,
                const TensorView& out);

}  // namespace weft
