#include "parallel/methods/causal_balance.h"

#include "kernels/copy.h"
#include "parallel/context.h"
#include "parallel/methods/attention_state.h"

namespace weft {

namespace {

// The rank that works on the owner's queries at `time` in its place, or -1 where there is none.
int helper_of(int ranks, int owner, int time) {
  const int helper = owner + time - ranks;
  return time > 0 && helper >= 0 && !balance_step(ranks, helper, time).idle() ? helper : -1;
}

// One attend of one rank.
class Balance {
 public:
  Balance(Communicator& group, const SequenceMap& tokens, Context& context, const Attend& attend,
          const AttendTags& tags)
      : group_(group), tokens_(tokens), context_(context), attend_(attend), tags_(tags) {
    const int64_t n = attend.q[0], longest = tokens.longest();
    const int64_t heads = attend.q[1], kv_heads = attend.k[1], e = attend.q[2];
    Arena& arena = context.arena;
    q_ = arena.alloc(attend.q.dtype, {n, heads, e});
    kv_ = arena.alloc(attend.q.dtype, {2, n, kv_heads, e});
    copy(context.stream, attend.q, q_);
    copy(context.stream, attend.k, kv_.select(0, 0));
    copy(context.stream, attend.v, kv_.select(0, 1));
    for (int slot = 0; slot < 2; ++slot) {
      fetched_q_[slot] = arena.alloc(attend.q.dtype, {longest, heads, e});
      fetched_kv_[slot] = arena.alloc(attend.q.dtype, {2, longest, kv_heads, e});
      helped_[slot] = arena.alloc(DType::kF32, {longest * heads * (e + 1)});
    }
    sum_ = alloc_state(arena, n, heads, e);
    part_ = alloc_state(arena, n, heads, e);
    arrived_ = state_in(arena.alloc(DType::kF32, {n * heads * (e + 1)}), n, heads, e);
  }

  void run() {
    const int last = ranks() / 2;
    Communicator::Pending fetch = post_fetch(1), home;
    attend_block(context_, attend_, q_, tokens_[own()], own_block(), sum_);
    for (int time = 1; time <= last; ++time) {
      group_.wait(fetch);
      fetch = post_fetch(time + 1);
      const AttentionState helped = work(time);
      take_home(home, time - 1);
      home = post_home(time, helped);
    }
    take_home(home, last);
    copy(context_.stream, sum_.out, attend_.out);
  }

 private:
  int ranks() const { return tokens_.size(); }
  int own() const { return group_.rank(); }
  KeyBlock own_block() const { return {kv_.select(0, 0), kv_.select(0, 1), tokens_[own()]}; }
  TensorView fetched_q(int time, int owner) const {
    return fetched_q_[time % 2].slice(0, 0, tokens_.rows(owner));
  }
  TensorView fetched_kv(int time, int owner) const {
    const TensorView& all = fetched_kv_[time % 2];
    return TensorView(all.data, all.dtype, {2, tokens_.rows(owner), all[2], all[3]}, all.device);
  }
  AttentionState helped(int time, int owner) const {
    const int64_t rows = tokens_.rows(owner), heads = q_[1], e = q_[2];
    return state_in(helped_[time % 2], rows, heads, e);
  }

  // Posts the sends and receives of the blocks that are needed at `time`.
  Communicator::Pending post_fetch(int time) {
    if (time > ranks() / 2) return {};
    std::vector<Message> sends, receives;
    const BalanceStep step = balance_step(ranks(), own(), time);
    const int reader = own() + time, helper = helper_of(ranks(), own(), time);
    if (reader < ranks()) sends.push_back({reader, tags_(Payload::kKeyValue, time), kv_});
    if (helper >= 0) sends.push_back({helper, tags_(Payload::kQuery, time), q_});
    if (step.queries == own())
      receives.push_back({step.keys, tags_(Payload::kKeyValue, time), fetched_kv(time, step.keys)});
    else if (!step.idle())
      receives.push_back(
          {step.queries, tags_(Payload::kQuery, time), fetched_q(time, step.queries)});
    return group_.post(context_.stream, sends, receives);
  }

  // Sends the state to the queries' owner where this rank helped.
  AttentionState work(int time) {
    const BalanceStep step = balance_step(ranks(), own(), time);
    if (step.idle()) return {};
    if (step.queries == own()) {
      const TensorView kv = fetched_kv(time, step.keys);
      attend_block(context_, attend_, q_, tokens_[own()],
                   {kv.select(0, 0), kv.select(0, 1), tokens_[step.keys]}, part_);
      merge_attention(context_.stream, sum_.out, sum_.lse, part_.out, part_.lse);
      return {};
    }
    const AttentionState state = helped(time, step.queries);
    attend_block(context_, attend_, fetched_q(time, step.queries), tokens_[step.queries],
                 own_block(), state);
    return state;
  }

  Communicator::Pending post_home(int time, const AttentionState& state) {
    std::vector<Message> sends, receives;
    const int owner = balance_step(ranks(), own(), time).queries;
    const int helper = helper_of(ranks(), own(), time);
    const Tag tag = tags_(Payload::kState, time);
    if (state.out) sends = {{owner, tag, state.whole}};
    if (helper >= 0) receives = {{helper, tag, arrived_.whole}};
    return group_.post(context_.stream, sends, receives);
  }

  void take_home(Communicator::Pending& home, int time) {
    group_.wait(home);
    if (helper_of(ranks(), own(), time) >= 0)
      merge_attention(context_.stream, sum_.out, sum_.lse, arrived_.out, arrived_.lse);
  }

  Communicator& group_;
  const SequenceMap& tokens_;
  Context& context_;
  const Attend& attend_;
  AttendTags tags_;
  TensorView q_, kv_;  // this rank's own
  std::array<TensorView, 2> fetched_q_, fetched_kv_, helped_;
  AttentionState sum_, part_, arrived_;
};

}  // namespace

BalanceStep balance_step(int ranks, int rank, int time) {
  CHECK(rank >= 0 && rank < ranks && time >= 0 && time <= ranks / 2, "rank", rank, "time", time);
  if (rank >= time) return {rank, rank - time};
  // Half way around the owner does it itself.
  return 2 * time == ranks ? BalanceStep{} : BalanceStep{rank - time + ranks, rank};
}

LightSeqMixer::LightSeqMixer(Communicator group, SequenceMap tokens)
    : group_(std::move(group)), tokens_(std::move(tokens)) {
  CHECK(tokens_.size() == group_.size(), "tokens of", tokens_.size(), "ranks of", group_.size());
  for (int rank = 0; rank < tokens_.size(); ++rank)
    CHECK(tokens_[rank].ranges.size() == 1 &&
              (rank == 0 || tokens_[rank].ranges[0].begin >= tokens_[rank - 1].ranges[0].end),
          "the tokens of rank", rank, "are not one range behind those of the rank before");
}

void LightSeqMixer::attend(Context& context, const Attend& attend) {
  const int64_t n = attend.q[0];
  CHECK(attend.mask == Mask::kCausal && attend.replicated == 0, "balanced attention is causal");
  CHECK(!attend.past || attend.past->segments.empty(), "balanced attention sees no past");
  CHECK(n == tokens_.rows(group_.rank()), "rows", n, "tokens", tokens_.rows(group_.rank()));
  apply_positions(context, attend);
  append_to_cache(context.stream, attend.past, attend.k, attend.v);
  const Arena::Scope scope(context.arena);
  // Messages of time t have number t.
  Balance(group_, tokens_, context, attend, take_tags(attend.layer, group_.size() / 2 + 1)).run();
}

}  // namespace weft
