#pragma once
// The attention family computes softmax(q k^T * scale + bias) v over a list of key/value segments.
// It can return the log-sum-exp, so that states over disjoint keys can be merged (Milakov &
// Gimelshein 2018; Dao et al. 2022, algorithm 1).
#include <limits>
#include <span>

#include "kernels/stream.h"

namespace weft {

// A KVSegment is one stretch of keys and values. `position` is the global index of its first key
// (for causal masks). `log_bias` is added to every logit of the segment: ln(count) for a row that
// stands for `count` equal ones.
struct KVSegment {
  TensorView k, v;  // [n, Akv, E], rows may be strided
  int64_t position = 0;
  float log_bias = 0;
};

// The element type of the two GEMMs of attention.
//   kCompute  q, k and v as they are
//   kFp8      f8_e4m3. Per key/value head, q, k and v have one power-of-two scale each
//             (e4m3_exponent). Base-2 softmax; the row maximum is rounded up to an integer;
//             probabilities are stored as e4m3(256 p). The sums are divided by the total of the
//             probabilities before their rounding.
enum class AttentionFormat : uint8_t { kCompute, kFp8 };
inline constexpr int64_t kLargestFp8Head = 128;  // E

struct AttentionArgs {
  TensorView q;                                        // [N, A, E]; A is a multiple of Akv
  std::span<const KVSegment> segments;                 // softmax runs over all their keys together
  TensorView bias{};                                   // [A, N, sum of n] f32, or empty
  float scale = 1;                                     // applied to q k^T before the bias
  bool causal = false;                                 // key position must be <= query position
  int64_t query_position = 0;                          // global index of the first query row
  AttentionFormat format = AttentionFormat::kCompute;  // kFp8: no bias, E up to kLargestFp8Head
  TensorView out;    // [N, A, E], dtype of q; or f32, for a state to be merged
  TensorView lse{};  // [A, N] f32 natural log, or empty
};

// q, k, v share one dtype (f32 or bf16); logits, softmax and accumulation are f32. An f32 `out`
// holds the accumulated values unrounded. A query that sees no key gets out 0 and lse -inf.
void attention(Stream& stream, const AttentionArgs& args);

// Merges two attention states (out, lse) over disjoint keys; the identity is (0, -inf). Swapping
// the two inputs gives the same bits. out_a, out_b [N, A, E] f32; lse_a, lse_b [A, N] f32; the
// result replaces state a.
void merge_attention(Stream& stream, const TensorView& out_a, const TensorView& lse_a,
                     const TensorView& out_b, const TensorView& lse_b);

}  // namespace weft
