#pragma once
// Rotary position embedding (Su et al. 2021) over three axes (frame, row, column) for grids of
// patches, or over one for text.
#include <array>
#include <span>

#include "kernels/stream.h"

namespace weft {

// Says which values of a head rotate together: x[2j] and x[2j+1], or x[j] and x[j+E/2]
// (GPT-NeoX).
enum class RopePairs : uint8_t { kNeighbours, kHalves };

// A Rope holds the angles of a token grid. Token t of the grid (frame-major, then row, then column)
// has position (start[0] + f, start[1] + h, start[2] + w); negative positions are legal.
struct Rope {
  std::array<int64_t, 3> grid{};   // tokens along frame, row, column
  std::array<int64_t, 3> start{};  // global position of token 0
  std::array<int, 3> pairs{};      // complex pairs per axis; they sum to E / 2
  // table[a] holds cos and sin for positions start[a] .. start[a] + grid[a] - 1: [grid[a],
  // pairs[a], 2] f32, computed from f64 angles.
  std::array<Tensor, 3> table;
  RopePairs order = RopePairs::kNeighbours;
  double theta = 0;  // omega_j = theta^(-j / pairs); 0 where no single rule holds
};

// Returns a copy with its tables on the stream's device, where apply_rope needs them.
Rope on_device(Stream& stream, const Rope& rope);

// Returns a copy in which frame i has the position frames[i], which need not be whole. Its tables
// are on the stream's device, as the tables of `rope` are.
Rope with_frame_positions(Stream& stream, const Rope& rope, std::span<const double> frames);

// Makes the tables on the host for head size `head_dim`: the axes get head_dim - 4 (head_dim / 6),
// 2 (head_dim / 6), 2 (head_dim / 6) dimensions; omega_j = theta^(-2j/d) with each axis' own d.
Rope make_rope(std::array<int64_t, 3> grid, std::array<int64_t, 3> start, int head_dim,
               double theta = 10000.0);

// Makes the tables for axes with the given numbers of pairs; omega_j = theta^(-j / pairs).
Rope make_rope(std::array<int64_t, 3> grid, std::array<int64_t, 3> start,
               const std::array<int, 3>& pairs, double theta);

// Makes the tables for `tokens` consecutive positions from `start` on: the first axis has all
// dimensions, omega_j = theta^(-2j/E).
Rope make_line_rope(int64_t tokens, int64_t start, int head_dim, double theta, RopePairs order);

// Makes the tables for `tokens` rows whose position is start + i on every axis. The table of the
// first axis has the angles of all three.
Rope make_diagonal_rope(int64_t tokens, int64_t start, const std::array<int, 3>& pairs,
                        double theta);

// Rotates the rows of grid tokens first_token .. first_token + n - 1. x and out are [n, A, E] f32
// or bf16, arithmetic is f32; they may alias exactly, and rows may be strided. A grid has fewer
// than 2^31 tokens.
void apply_rope(Stream& stream, const TensorView& x, const Rope& rope, int64_t first_token,
                const TensorView& out);

// The RMS norm of each head, where weight is [E], or of all heads of a row, where it is [A E].
struct HeadNorm {
  TensorView weight;  // f32
  float eps = 0;
};
// rms_norm of x [n, A, E], then apply_rope: the results of both, bit for bit. A device reads x
// once. x and out may alias exactly; for a norm of all heads they lie side by side in a row.
void rms_norm_rope(Stream& stream, const TensorView& x, const HeadNorm& norm, const Rope& rope,
                   int64_t first_token, const TensorView& out);
// x [n, A, E] as rows [n, A E].
TensorView head_rows(const TensorView& x);
// Norms x [n, A, E] in place.
void norm_heads(Stream& stream, const TensorView& x, const HeadNorm& norm);

}  // namespace weft
