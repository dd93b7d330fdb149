#include "parallel/ring.h"

#include <algorithm>
#include <limits>

#include "kernels/copy.h"
#include "parallel/context.h"

namespace weft {

namespace {

TensorView in_f32(Context& context, const TensorView& x) {
  if (x.dtype == DType::kF32) return x;
  const TensorView wide = context.arena.alloc(DType::kF32, x.shape());
  copy(context.stream, x, wide);
  return wide;
}

}  // namespace

AttentionState alloc_state(Arena& arena, int64_t rows, int64_t heads, int64_t head_dim) {
  return {arena.alloc(DType::kF32, {rows, heads, head_dim}),
          arena.alloc(DType::kF32, {heads, rows})};
}

void clear_state(Stream& stream, const AttentionState& state) {
  fill_zero(stream, state.out);
  float* lse = state.lse.as<float>();
  for (int64_t i = 0; i < state.lse.count(); ++i) lse[i] = -std::numeric_limits<float>::infinity();
}

// Blocks of bf16 are widened first: a state in bf16 would be rounded once per hop.
void attend_block(Context& context, const TensorView& q, int64_t query_position,
                  const KVSegment& block, float scale, Mask mask, const AttentionState& state) {
  const Arena::Scope scope(context.arena);
  KVSegment wide = block;
  wide.k = in_f32(context, block.k);
  wide.v = in_f32(context, block.v);
  attention(context.stream, {.q = in_f32(context, q),
                             .segments = {&wide, 1},
                             .scale = scale,
                             .causal = mask == Mask::kCausal,
                             .query_position = query_position,
                             .out = state.out,
                             .lse = state.lse});
}

void RingMixer::attend(Context& context, const Attend& attend) {
  Stream& stream = context.stream;
  const int ranks = group_.size(), own = group_.rank();
  const int64_t n = attend.q[0], heads = attend.q[1], kv_heads = attend.k[1], e = attend.q[2];
  CHECK(n == tokens_[own].size() && !attend.past, "rows", n, "tokens", to_string(tokens_[own]));
  apply_positions(context, attend);

  const Arena::Scope scope(context.arena);
  int64_t longest = 0;
  for (const Range& range : tokens_) longest = std::max(longest, range.size());
  // A block is its keys, then its values: [2, rows, Akv, E], so that it travels as one message.
  const auto block_of = [&](const TensorView& buffer, int rank) {
    const int64_t rows = tokens_[rank].size();
    return TensorView(buffer.data, buffer.dtype, {2, rows, kv_heads, e});
  };
  const TensorView buffers = context.arena.alloc(attend.k.dtype, {2, 2, longest, kv_heads, e});
  TensorView here = block_of(buffers.select(0, 0), own);
  copy(stream, attend.k, here.select(0, 0));
  copy(stream, attend.v, here.select(0, 1));
  const AttentionState sum = alloc_state(context.arena, n, heads, e),
                       part = alloc_state(context.arena, n, heads, e);
  clear_state(stream, sum);
  for (int hop = 0; hop < ranks; ++hop) {
    const int holder = (own + ranks - hop) % ranks;
    const TensorView next =
        block_of(buffers.select(0, (hop + 1) % 2), (holder + ranks - 1) % ranks);
    Communicator::Pending pending;
    if (hop + 1 < ranks) {
      const Tag tag{.kind = Traffic::kKeyValue,
                    .step = context.pass.step,
                    .branch = context.pass.branch,
                    .layer = attend.layer,
                    .segment = context.pass.micro * ranks + hop};
      const Message send{(own + 1) % ranks, tag, here},
          receive{(own + ranks - 1) % ranks, tag, next};
      pending = group_.post(stream, {&send, 1}, {&receive, 1});
    }
    const bool hidden = attend.mask == Mask::kCausal && tokens_[holder].begin >= tokens_[own].end;
    if (!hidden) {
      const KVSegment block{
          .k = here.select(0, 0), .v = here.select(0, 1), .position = tokens_[holder].begin};
      attend_block(context, attend.q, tokens_[own].begin, block, attend.scale, attend.mask, part);
      merge_attention(stream, sum.out, sum.lse, part.out, part.lse);
    }
    group_.wait(pending);
    here = next;
  }
  copy(stream, sum.out, attend.out);
}

int64_t ring_sent_bytes(const std::vector<Range>& tokens, int rank, int64_t kv_heads,
                        int64_t head_dim, int64_t element_bytes) {
  const int ranks = static_cast<int>(tokens.size());
  int64_t rows = 0;
  for (int other = 0; other < ranks; ++other)
    if (other != (rank + 1) % ranks) rows += tokens[other].size();
  return ranks == 1 ? 0 : 2 * rows * kv_heads * head_dim * element_bytes;
}

}  // namespace weft
