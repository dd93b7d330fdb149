#pragma once
// Attention family: softmax(q k^T * scale + bias) v over a list of key/value segments, with the
// log-sum-exp as a mergeable state (Milakov & Gimelshein 2018; Dao et al. 2022, algorithm 1).
#include <limits>
#include <span>

#include "kernels/stream.h"

namespace weft {

// One stretch of keys and values. `position` is the global index of its first key (causal masks).
struct KVSegment {
  TensorView k, v;  // [n, Akv, E], rows may be strided
  int64_t position = 0;
  float log_bias = 0;  // added to every logit of the segment: ln(count) for a row that stands for
                       // `count` equal ones
};

// What the products of attention are made of.
enum class AttentionFormat : uint8_t {
  kCompute,  // q, k and v as they are
  kFp8,      // f8_e4m3. All q, k and v of a key/value head have one power of two each as scale
             // (e4m3_exponent). Logits are powers of two; a probability is relative to the largest
             // one of its query rounded up to an integer, 256 stands for 1. What probabilities are
             // divided by is the sum before their rounding.
};
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
  TensorView lse{};  // [A, N] f32 natural log, or empty. A query that sees no
                     // key gets out 0 and lse -inf.
};

// q, k, v share one dtype (f32 or bf16); logits, softmax and accumulation are f32. An f32 `out`
// holds what was accumulated, unrounded.
void attention(Stream& stream, const AttentionArgs& args);

// (out, lse) <- merge of two states over disjoint keys; the identity is (0, -inf). Symmetric to the
// bit in its two inputs. out_a, out_b [N, A, E] f32; lse_a, lse_b [A, N] f32; results replace a.
void merge_attention(Stream& stream, const TensorView& out_a, const TensorView& lse_a,
                     const TensorView& out_b, const TensorView& lse_b);

}  // namespace weft
