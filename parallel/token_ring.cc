#include "parallel/token_ring.h"

#include <algorithm>

#include "kernels/copy.h"
#include "parallel/context.h"
#include "parallel/ring.h"

namespace weft {

void TokenRingMixer::attend(Context& context, const Attend& attend) {
  Stream& stream = context.stream;
  const int ranks = group_.size(), own = group_.rank();
  const int64_t n = attend.q[0], heads = attend.q[1], e = attend.q[2];
  CHECK(n == tokens_[own].size() && !attend.past, "rows", n, "tokens", to_string(tokens_[own]));
  apply_positions(context, attend);

  const Arena::Scope scope(context.arena);
  int64_t longest = 0;
  for (const Range& range : tokens_) longest = std::max(longest, range.size());
  const TensorView buffers = context.arena.alloc(attend.q.dtype, {2, longest, heads, e});
  const auto queries = [&](int hop, int owner) {
    return buffers.select(0, hop % 2).slice(0, 0, tokens_[owner].size());
  };
  // States of strangers: one is computed while the one before travels home.
  const TensorView strangers = context.arena.alloc(DType::kF32, {2, longest * heads * (e + 1)});
  const auto state_of = [&](int hop, int owner) {
    float* at = strangers.select(0, hop % 2).as<float>();
    const int64_t rows = tokens_[owner].size();
    return AttentionState{TensorView(at, DType::kF32, {rows, heads, e}),
                          TensorView(at + rows * heads * e, DType::kF32, {heads, rows})};
  };
  const AttentionState sum = alloc_state(context.arena, n, heads, e),
                       arrived = alloc_state(context.arena, n, heads, e);
  const auto tag = [&](Traffic kind, int segment) {
    return Tag{.kind = kind,
               .step = context.pass.step,
               .branch = context.pass.branch,
               .layer = attend.layer,
               .segment = context.pass.micro * 2 * ranks + segment};
  };

  copy(stream, attend.q, queries(0, own));
  Communicator::Pending home;
  for (int hop = 0; hop < ranks; ++hop) {
    const int owner = (own + ranks - hop) % ranks, helper = (own + hop) % ranks;
    Communicator::Pending onward;
    if (hop + 1 < ranks) {
      const Message send{(own + 1) % ranks, tag(Traffic::kQuery, hop), queries(hop, owner)};
      const Message receive{(own + ranks - 1) % ranks, tag(Traffic::kQuery, hop),
                            queries(hop + 1, (owner + ranks - 1) % ranks)};
      onward = group_.post(stream, {&send, 1}, {&receive, 1});
    }
    const KVSegment block{.k = attend.k, .v = attend.v, .position = tokens_[own].begin};
    const AttentionState state = hop == 0 ? sum : state_of(hop, owner);
    attend_block(context, queries(hop, owner), tokens_[owner].begin, block, attend.scale,
                 attend.mask, state);
    group_.wait(home);  // of the hop before
    if (hop > 1) merge_attention(stream, sum.out, sum.lse, arrived.out, arrived.lse);
    if (hop > 0) {
      const Message sends[] = {{owner, tag(Traffic::kState, 2 * hop), state.out},
                               {owner, tag(Traffic::kState, 2 * hop + 1), state.lse}};
      const Message receives[] = {{helper, tag(Traffic::kState, 2 * hop), arrived.out},
                                  {helper, tag(Traffic::kState, 2 * hop + 1), arrived.lse}};
      home = group_.post(stream, sends, receives);
    }
    group_.wait(onward);
  }
  group_.wait(home);
  if (ranks > 1) merge_attention(stream, sum.out, sum.lse, arrived.out, arrived.lse);
  copy(stream, sum.out, attend.out);
}

int64_t token_ring_sent_bytes(const std::vector<Range>& tokens, int rank, int64_t heads,
                              int64_t head_dim, int64_t element_bytes) {
  const int ranks = static_cast<int>(tokens.size());
  int64_t forward = 0, home = 0;
  for (int other = 0; other < ranks; ++other) {
    if (ranks > 1 && other != (rank + 1) % ranks) forward += tokens[other].size();
    if (other != rank) home += tokens[other].size();
  }
  return forward * heads * head_dim * element_bytes +
         home * heads * (head_dim + 1) * static_cast<int64_t>(sizeof(float));
}

}  // namespace weft
