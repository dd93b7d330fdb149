#pragma once
// Rotary position embedding (Su et al. 2021): over three axes (frame, row, column) for grids of
// patches, over one for text.
#include <array>

#include "kernels/stream.h"

namespace weft {

// Which values of a head turn together: x[2j] and x[2j+1] (Wan), or x[j] and x[j+E/2] (GPT-NeoX,
// Qwen).
enum class RopePairs : uint8_t { kNeighbours, kHalves };

// Angles of a token grid. Token t of the grid (frame-major, then row, then column) has position
// (start[0] + f, start[1] + h, start[2] + w); negative positions are legal.
struct Rope {
  std::array<int64_t, 3> grid{};   // tokens along frame, row, column
  std::array<int64_t, 3> start{};  // global position of token 0
  std::array<int, 3> pairs{};      // complex pairs per axis; they sum to E / 2
  // cos and sin per axis, for positions start[a] .. start[a] + grid[a] - 1: [grid[a], pairs[a], 2]
  // f32, from f64 angles.
  std::array<Tensor, 3> table;
  RopePairs order = RopePairs::kNeighbours;
};

// A copy with its tables on the stream's device, where apply_rope wants them.
Rope on_device(Stream& stream, const Rope& rope);

// The tables, on the host, for head size `head_dim`: the axes get head_dim - 4 (head_dim / 6), 2
// (head_dim / 6), 2 (head_dim / 6) dimensions; omega_j = theta^(-2j/d) with each axis' own d.
Rope make_rope(std::array<int64_t, 3> grid, std::array<int64_t, 3> start, int head_dim,
               double theta = 10000.0);

// The tables of a line of `tokens` positions from `start` on: the first axis has all dimensions,
// omega_j = theta^(-2j/E).
Rope make_line_rope(int64_t tokens, int64_t start, int head_dim, double theta, RopePairs order);

// Rotates rows that stand for grid tokens first_token .. first_token + n - 1.
// x, out [n, A, E] f32 or bf16, arithmetic f32; may alias exactly; rows may be strided. A grid has
// fewer than 2^31 tokens.
void apply_rope(Stream& stream, const TensorView& x, const Rope& rope, int64_t first_token,
                const TensorView& out);

}  // namespace weft
