#pragma once
// Ring attention: every rank keeps its queries, keys and values go around.
//
// Split: the sequence (uneven).
// Talk: each rank sends the block it holds to the next of its group and takes the previous one's,
//   P - 1 times a layer, before the attention of the block it has.
// Bytes sent by rank r per layer: 2 e Akv E times the rows of every rank but that of rank r + 1
//   (ring_sent_bytes).
// Memory: two blocks of keys and values; two attention states in f32.
// Exact: states are f32 and merged in the order of the hops; each is one softmax over its block.
// Divisibility: none; every rank needs a token.
// Overlap: the next block travels while the present one is attended to.
// Paper: Ring Attention (Liu et al. 2023, arXiv 2310.01889), section 3; the merge: Milakov &
//   Gimelshein 2018, arXiv 1805.02867.
#include <vector>

#include "parallel/communicator.h"
#include "parallel/partition.h"
#include "parallel/token_mixer.h"

namespace weft {

class RingMixer final : public TokenMixer {
 public:
  // `tokens[i]`: the global tokens whose keys and values rank i of the group holds.
  RingMixer(Communicator group, std::vector<Range> tokens)
      : group_(std::move(group)), tokens_(std::move(tokens)) {}

  void begin(const Pass&) override {}
  // Causal attention skips the blocks that lie behind every query.
  void attend(Context& context, const Attend& attend) override;

 private:
  Communicator group_;
  std::vector<Range> tokens_;
};

// Bytes that `rank` sends for one layer.
int64_t ring_sent_bytes(const std::vector<Range>& tokens, int rank, int64_t kv_heads,
                        int64_t head_dim, int64_t element_bytes);

// The attention state of queries over one block, as ring methods pass it on.
struct AttentionState {
  TensorView out;  // [n, A, E] f32
  TensorView lse;  // [A, n] f32
};
AttentionState alloc_state(Arena& arena, int64_t rows, int64_t heads, int64_t head_dim);
// The identity of merge_attention: (0, -inf).
void clear_state(Stream& stream, const AttentionState& state);
// state = q over one block of keys and values, f32 whatever the dtype of q, k and v.
void attend_block(Context& context, const TensorView& q, int64_t query_position,
                  const KVSegment& block, float scale, Mask mask, const AttentionState& state);

}  // namespace weft
