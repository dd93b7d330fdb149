#include "parallel/methods/token_ring.h"

#include <algorithm>

#include "kernels/copy.h"
#include "parallel/context.h"
#include "parallel/methods/attention_state.h"

namespace weft {

namespace {

// The route of the queries, and the first of their rows that still travels, computes or returns;
// all later rows do too.
struct Tour {
  const SequenceMap& tokens;
  Mask mask;

  int ranks() const { return tokens.size(); }
  int step() const { return mask == Mask::kCausal ? ranks() - 1 : 1; }
  // The rank that holds the owner's queries at a hop, and the owner of those that a rank holds.
  int helper(int owner, int hop) const { return (owner + hop * step()) % ranks(); }
  int owner(int helper, int hop) const { return (helper + hop * (ranks() - step())) % ranks(); }
  int64_t seeing(int owner, int hop) const {
    return first_seeing(tokens[owner], tokens[helper(owner, hop)], mask);
  }
  int64_t travelling(int owner, int hop) const {
    int64_t first = tokens.rows(owner);
    for (; hop < ranks(); ++hop) first = std::min(first, seeing(owner, hop));
    return first;
  }
};

}  // namespace

void TokenRingMixer::attend(Context& context, const Attend& attend) {
  Stream& stream = context.stream;
  const int ranks = group_.size(), own = group_.rank();
  const Attend mine = own_rows(attend);
  const int64_t n = mine.q[0], heads = mine.q[1], e = mine.q[2];
  CHECK(tokens_.size() == ranks && n == tokens_.rows(own), "rows", n, "tokens", tokens_.rows(own));
  CHECK(!attend.past || attend.past->segments.empty(), "a token ring sees no past");
  apply_positions(context, attend);
  append_to_cache(stream, mine.past, mine.k, mine.v);

  const Arena::Scope scope(context.arena);
  const Tour tour{tokens_, attend.mask};
  const int64_t longest = tokens_.longest();
  const TensorView buffers = context.arena.alloc(attend.q.dtype, {2, longest, heads, e});
  // The owner's queries that are still needed at a hop.
  const auto queries = [&](int owner, int hop) {
    return buffers.select(0, hop % 2)
        .slice(0, 0, tokens_.rows(owner) - tour.travelling(owner, hop));
  };
  // States of other ranks' queries: one is computed while the one before returns to its owner.
  const TensorView strangers = context.arena.alloc(DType::kF32, {2, longest * heads * (e + 1)});
  const TensorView landing = context.arena.alloc(DType::kF32, {longest * heads * (e + 1)});
  const AttentionState sum = alloc_state(context.arena, n, heads, e);
  ReplicatedAttention replicated(context, attend, ranks);
  const AttendTags tag = take_tags(attend.layer, 2 * ranks);
  Communicator::Pending home;
  AttentionState arrived;
  const auto take_home = [&](int hop) {  // waits for the states posted at `hop`
    group_.wait(home);
    if (hop < 1) return;
    const int64_t first = tour.seeing(own, hop);
    const AttentionState seeing = sum.rows(first, n - first);
    merge_attention(stream, seeing.out, seeing.lse, arrived.out, arrived.lse);
  };

  copy(stream, mine.q, buffers.select(0, 0).slice(0, 0, n));
  KeyBlock block{mine.k, mine.v, tokens_[own], replicated.keys()};
  replicated.see(own, mine.k, mine.v);
  for (int hop = 0; hop < ranks; ++hop) {
    const int owner = tour.owner(own, hop);
    // Other ranks' queries start at row 0 of the buffer; the own queries are complete.
    const int64_t base = hop == 0 ? 0 : tour.travelling(owner, hop);
    const TensorView here = hop == 0 ? buffers.select(0, 0).slice(0, 0, n) : queries(owner, hop);
    Communicator::Pending onward;
    if (hop + 1 < ranks) {
      const int64_t next = tour.travelling(owner, hop + 1) - base;
      const Message send{tour.helper(own, 1), tag(Payload::kQuery, hop),
                         here.slice(0, next, here[0] - next)};
      const Message receive{tour.owner(own, 1), tag(Payload::kQuery, hop),
                            queries(tour.owner(own, hop + 1), hop + 1)};
      onward = group_.post(stream, {&send, 1}, {&receive, 1});
    }
    const int64_t first = tour.seeing(owner, hop), rows = tokens_.rows(owner) - first;
    const AttentionState state =
        hop == 0 ? sum : state_in(strangers.select(0, hop % 2), rows, heads, e);
    attend_block(context, mine, here.slice(0, first - base, rows), rows_from(tokens_[owner], first),
                 block, state);
    block.replicated = {};  // the owners of the queries that come now have seen them
    take_home(hop - 1);
    if (hop > 0) {
      arrived = state_in(landing, n - tour.seeing(own, hop), heads, e);
      const int helper = tour.helper(own, hop);
      const Message sends[] = {{owner, tag(Payload::kState, 2 * hop), state.out},
                               {owner, tag(Payload::kState, 2 * hop + 1), state.lse}};
      const Message receives[] = {{helper, tag(Payload::kState, 2 * hop), arrived.out},
                                  {helper, tag(Payload::kState, 2 * hop + 1), arrived.lse}};
      home = group_.post(stream, sends, receives);
    }
    group_.wait(onward);
  }
  take_home(ranks - 1);
  copy(stream, sum.out, mine.out);
  if (attend.replicated == 0) return;
  std::vector<TensorView> states;
  for (int rank = 0; rank < ranks; ++rank) states.push_back(replicated.message(rank));
  group_.all_gather_v(stream, tag(Payload::kState, 0), states[own], states);
  replicated.write();
}

int64_t token_ring_sent_bytes(const SequenceMap& tokens, int rank, const AttendShape& shape,
                              Mask mask) {
  const Tour tour{tokens, mask};
  int64_t forward = 0, home = (tour.ranks() - 1) * shape.replicated;
  for (int hop = 0; hop < tour.ranks(); ++hop) {
    const int owner = tour.owner(rank, hop);
    const int64_t rows = tokens.rows(owner);
    if (hop + 1 < tour.ranks()) forward += rows - tour.travelling(owner, hop + 1);
    if (hop > 0) home += rows - tour.seeing(owner, hop);
  }
  return forward * shape.heads * shape.head_dim * shape.element() +
         home * shape.heads * (shape.head_dim + 1) * static_cast<int64_t>(sizeof(float));
}

size_t token_ring_arena_bytes(const SequenceMap& tokens, int rank, const AttendShape& shape) {
  const int64_t longest = tokens.longest(), state = longest * shape.heads * (shape.head_dim + 1);
  return arena_bytes(shape.dtype, {2, longest, shape.heads, shape.head_dim}) +
         arena_bytes(DType::kF32, {2, state}) + arena_bytes(DType::kF32, {state}) +
         state_arena_bytes(tokens.rows(rank), shape.heads, shape.head_dim) +
         replicated_arena_bytes(shape, tokens.size());
}

}  // namespace weft
