#include "parallel/methods/ring.h"

#include "kernels/copy.h"
#include "parallel/context.h"
#include "parallel/methods/attention_state.h"

namespace weft {

// Fills `block` [2, keys of this rank, Akv, E] with past keys and values, then the present ones.
TensorView RingMixer::own_block(Stream& stream, const Attend& own, const TensorView& block) const {
  int64_t row = 0;
  const auto append = [&](const TensorView& k, const TensorView& v) {
    copy(stream, k, block.select(0, 0).slice(0, row, k[0]));
    copy(stream, v, block.select(0, 1).slice(0, row, v[0]));
    row += k[0];
  };
  if (own.past)
    for (const KVSegment& segment : own.past->segments) append(segment.k, segment.v);
  append(own.k, own.v);
  CHECK(row == block[1], "keys", row, "of", block.to_string_shape());
  return block;
}

void RingMixer::attend(Context& context, const Attend& attend) {
  Stream& stream = context.stream;
  const int ranks = group_.size(), own = group_.rank();
  const Attend mine = own_rows(attend);
  const int64_t n = mine.q[0], heads = mine.q[1], kv_heads = mine.k[1], e = mine.q[2];
  CHECK(tokens_.size() == ranks && keys_.size() == ranks && n == tokens_.rows(own), "rows", n,
        "tokens", tokens_.rows(own));
  apply_positions(context, attend);
  append_to_cache(stream, mine.past, mine.k, mine.v);

  const AttendTags tags = take_tags(attend.layer, ranks);
  const Arena::Scope scope(context.arena);
  // A block is its keys, then its values: [2, rows, Akv, E], so that it travels as one message.
  const auto block_of = [&](const TensorView& buffer, int rank) {
    return TensorView(buffer.data, buffer.dtype, {2, keys_.rows(rank), kv_heads, e}, buffer.device);
  };
  const TensorView buffers =
      context.arena.alloc(attend.k.dtype, {2, 2, keys_.longest(), kv_heads, e});
  TensorView here = own_block(stream, mine, block_of(buffers.select(0, 0), own));
  const AttentionState sum = alloc_state(context.arena, n, heads, e),
                       part = alloc_state(context.arena, n, heads, e);
  ReplicatedAttention replicated(context, attend, ranks);
  for (int hop = 0; hop < ranks; ++hop) {
    const int holder = (own + ranks - hop) % ranks;
    const TensorView next =
        block_of(buffers.select(0, (hop + 1) % 2), (holder + ranks - 1) % ranks);
    Communicator::Pending pending;
    if (hop + 1 < ranks) {
      const Tag tag = tags(Payload::kKeyValue, hop);
      const Message send{(own + 1) % ranks, tag, here},
          receive{(own + ranks - 1) % ranks, tag, next};
      pending = group_.post(stream, {&send, 1}, {&receive, 1});
    }
    // The own block comes first and every query sees some of it, so it initialises the whole state.
    const int64_t first = first_seeing(tokens_[own], keys_[holder], attend.mask);
    const AttentionState state = hop == 0 ? sum : part.rows(first, n - first);
    const TensorView k = here.select(0, 0), v = here.select(0, 1);
    attend_block(context, mine, mine.q.slice(0, first, n - first), rows_from(tokens_[own], first),
                 {k, v, keys_[holder], hop == 0 ? replicated.keys() : KVSegment{}}, state);
    replicated.see(holder, k, v);
    if (hop > 0) {
      const AttentionState seeing = sum.rows(first, n - first);
      merge_attention(stream, seeing.out, seeing.lse, state.out, state.lse);
    }
    group_.wait(pending);
    here = next;
  }
  copy(stream, sum.out, mine.out);
  replicated.write();
}

}  // namespace weft
