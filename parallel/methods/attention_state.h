#pragma once
// Attention of some queries over some of the keys, as states that can be merged, and the pairs that
// a causal mask allows. All ring methods are built from these functions.
#include "kernels/arena.h"
#include "parallel/sequence_map.h"
#include "parallel/token_mixer.h"

namespace weft {

struct AttentionState {
  TensorView out;      // [n, A, E] f32
  TensorView lse;      // [A, n] f32
  TensorView whole{};  // both in one piece, to travel as one message: state_in alone
  AttentionState rows(int64_t begin, int64_t count) const {
    return {out.slice(0, begin, count), lse.slice(1, begin, count)};
  }
};
AttentionState alloc_state(Arena& arena, int64_t rows, int64_t heads, int64_t head_dim);
// A state in given f32 memory of at least rows * heads * (head_dim + 1) values, out before lse.
AttentionState state_in(const TensorView& memory, int64_t rows, int64_t heads, int64_t head_dim);

// Keys and values of one rank, and the tokens they belong to.
struct KeyBlock {
  TensorView k, v;  // [n, Akv, E]
  const TokenRanges& tokens;
  KVSegment replicated{};  // replicated keys that are attended to with the block, or empty
};

// The first row of `queries` that sees any of `keys`; all later rows do too. queries.size() where
// no row does.
int64_t first_seeing(const TokenRanges& queries, const TokenRanges& keys, Mask mask);

// state = attention of q, the rows of `queries`, over one block; `attend` gives scale, mask and
// format. The state is f32 and not rounded to the dtype of q. Keys that no query sees are not read;
// a query that sees no key gets (0, -inf).
void attend_block(Context& context, const Attend& attend, const TensorView& q,
                  const TokenRanges& queries, const KeyBlock& block, const AttentionState& state);

// The attention of an attend's replicated queries (Attend::replicated) over `blocks` blocks of
// tokens and over the replicated keys. It keeps a state per block and merges them in the order of
// the blocks, so that every rank gets the same bits. Without replicated rows it does nothing.
class ReplicatedAttention {
 public:
  // Ropes are applied.
  ReplicatedAttention(Context& context, const Attend& attend, int blocks);
  // Attends to the keys and values of a block.
  void see(int block, const TensorView& k, const TensorView& v);
  AttentionState state(int block) const;
  KVSegment keys() const;  // the replicated keys and values, for the queries of tokens
  void write() const;      // merges all states into the last rows of attend.out

 private:
  Context& context_;
  Attend attend_;  // the replicated rows
  TensorView states_;
};

}  // namespace weft
