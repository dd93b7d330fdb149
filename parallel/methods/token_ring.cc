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

// One attend of one rank. Takes token_ring_arena_bytes from the arena.
class TokenRing {
 public:
  TokenRing(Communicator& group, const SequenceMap& tokens, Context& context, const Attend& attend,
            const AttendTags& tags)
      : group_(group),
        tokens_(tokens),
        tour_{tokens, attend.mask},
        context_(context),
        mine_(own_rows(attend)),
        tags_(tags),
        replicated_(context, attend, tokens.size()) {
    const int64_t n = mine_.q[0], heads = mine_.q[1], e = mine_.q[2], longest = tokens.longest();
    buffers_ = context.arena.alloc(mine_.q.dtype, {2, longest, heads, e});
    strangers_ = context.arena.alloc(DType::kF32, {2, longest * heads * (e + 1)});
    landing_ = context.arena.alloc(DType::kF32, {longest * heads * (e + 1)});
    sum_ = alloc_state(context.arena, n, heads, e);
  }

  void run() {
    copy(context_.stream, mine_.q, queries(own(), 0));
    KeyBlock block{mine_.k, mine_.v, tokens_[own()], replicated_.keys()};
    replicated_.see(own(), mine_.k, mine_.v);
    Communicator::Pending home;
    for (int hop = 0; hop < ranks(); ++hop) {
      Communicator::Pending onward = post_onward(hop);
      const AttentionState state = attend_at(hop, block);
      block.replicated = {};  // the owners of the queries that come now have seen them
      take_home(home, hop - 1);
      home = post_home(hop, state);
      group_.wait(onward);
    }
    take_home(home, ranks() - 1);
    copy(context_.stream, sum_.out, mine_.out);
  }

  // Gives every rank the replicated queries' states over all ranks' keys.
  void join_replicated() {
    std::vector<TensorView> states;
    for (int rank = 0; rank < ranks(); ++rank) states.push_back(replicated_.state(rank).whole);
    group_.all_gather_v(context_.stream, tags_(Payload::kState, 0), states[own()], states);
    replicated_.write();
  }

 private:
  int ranks() const { return tokens_.size(); }
  int own() const { return group_.rank(); }
  // The first of the owner's rows that is held at a hop. The own queries are complete.
  int64_t first_held(int owner, int hop) const {
    return hop == 0 ? 0 : tour_.travelling(owner, hop);
  }
  TensorView queries(int owner, int hop) const {
    return buffers_.select(0, hop % 2).slice(0, 0, tokens_.rows(owner) - first_held(owner, hop));
  }
  // The state of the owner's queries that see something at a hop.
  AttentionState state_at(int owner, int hop, const TensorView& memory) const {
    return state_in(memory, tokens_.rows(owner) - tour_.seeing(owner, hop), mine_.q[1], mine_.q[2]);
  }

  // Posts the send of the queries that are needed further on, and the receive of the next ones.
  Communicator::Pending post_onward(int hop) {
    if (hop + 1 == ranks()) return {};
    const int owner = tour_.owner(own(), hop);
    const TensorView here = queries(owner, hop);
    const int64_t done = tour_.travelling(owner, hop + 1) - first_held(owner, hop);
    const Tag tag = tags_(Payload::kQuery, hop);
    const Message send{tour_.helper(own(), 1), tag, here.slice(0, done, here[0] - done)};
    const Message receive{tour_.owner(own(), 1), tag,
                          queries(tour_.owner(own(), hop + 1), hop + 1)};
    return group_.post(context_.stream, {&send, 1}, {&receive, 1});
  }

  // States of other ranks' queries alternate between two places: one is computed while the one
  // before returns to its owner.
  AttentionState attend_at(int hop, const KeyBlock& block) {
    const int owner = tour_.owner(own(), hop);
    const int64_t first = tour_.seeing(owner, hop), rows = tokens_.rows(owner) - first;
    const AttentionState state =
        hop == 0 ? sum_ : state_at(owner, hop, strangers_.select(0, hop % 2));
    attend_block(context_, mine_,
                 queries(owner, hop).slice(0, first - first_held(owner, hop), rows),
                 rows_from(tokens_[owner], first), block, state);
    return state;
  }

  Communicator::Pending post_home(int hop, const AttentionState& state) {
    if (hop == 0) return {};
    arrived_ = state_at(own(), hop, landing_);
    const Tag tag = tags_(Payload::kState, hop);
    const Message send{tour_.owner(own(), hop), tag, state.whole},
        receive{tour_.helper(own(), hop), tag, arrived_.whole};
    return group_.post(context_.stream, {&send, 1}, {&receive, 1});
  }

  // Waits for the states posted at a hop, and merges the one that has come.
  void take_home(Communicator::Pending& home, int hop) {
    if (hop < 1) return;
    group_.wait(home);
    const int64_t first = tour_.seeing(own(), hop);
    const AttentionState seeing = sum_.rows(first, mine_.q[0] - first);
    merge_attention(context_.stream, seeing.out, seeing.lse, arrived_.out, arrived_.lse);
  }

  Communicator& group_;
  const SequenceMap& tokens_;
  const Tour tour_;
  Context& context_;
  const Attend mine_;  // without the replicated rows
  const AttendTags tags_;
  ReplicatedAttention replicated_;
  TensorView buffers_, strangers_, landing_;  // queries; states made here, and one that comes home
  AttentionState sum_, arrived_;
};

}  // namespace

void TokenRingMixer::attend(Context& context, const Attend& attend) {
  const int ranks = group_.size(), own = group_.rank();
  const Attend mine = own_rows(attend);
  CHECK(tokens_.size() == ranks && mine.q[0] == tokens_.rows(own), "rows", mine.q[0], "tokens",
        tokens_.rows(own));
  CHECK(!attend.past || attend.past->segments.empty(), "a token ring sees no past");
  apply_positions(context, attend);
  append_to_cache(context.stream, mine.past, mine.k, mine.v);
  const Arena::Scope scope(context.arena);
  TokenRing ring(group_, tokens_, context, attend, take_tags(attend.layer, ranks));
  ring.run();
  if (attend.replicated > 0) ring.join_replicated();
}

}  // namespace weft
