#include "parallel/methods/ulysses.h"

#include <algorithm>

#include "kernels/copy.h"
#include "parallel/context.h"

namespace weft {

namespace {

int64_t sent(const HeadPart& heads) { return heads.q.size() + 2 * heads.kv.size(); }

}  // namespace

UlyssesMixer::UlyssesMixer(Communicator group, SequenceMap tokens,
                           std::unique_ptr<TokenMixer> inner)
    : group_(std::move(group)), tokens_(std::move(tokens)), inner_(std::move(inner)) {
  CHECK(tokens_.size() == group_.size(), "tokens of", tokens_.size(), "ranks of", group_.size());
}

void UlyssesMixer::begin(const Pass& pass) {
  TokenMixer::begin(pass);
  inner_->begin(pass);
}

void UlyssesMixer::finish() {
  TokenMixer::finish();
  inner_->finish();
}

HeadPart UlyssesMixer::heads_of(int rank, const Attend& attend) const {
  return partition_heads(attend.q[1], attend.k[1], group_.size(), rank);
}

// Returns q, k and v [S + R, h + 2 k, E] of this rank's heads: the rows of all ranks in turn, then
// the replicated rows.
TensorView UlyssesMixer::to_heads(Context& context, const Attend& attend, const Tag& tag) {
  Stream& stream = context.stream;
  const int ranks = group_.size(), own = group_.rank();
  const int64_t n = tokens_.rows(own), e = attend.q[2];
  const auto pack = [&](const Attend& from, const HeadPart& heads, const TensorView& to) {
    int64_t at = 0;
    const auto put = [&](const TensorView& x, const Range& part) {
      copy(stream, x.slice(1, part.begin, part.size()), to.slice(1, at, part.size()));
      at += part.size();
    };
    put(from.q, heads.q);
    put(from.k, heads.kv);
    put(from.v, heads.kv);
  };
  const Attend mine = own_rows(attend);
  const TensorView qkv = context.arena.alloc(
      attend.q.dtype, {tokens_.rows() + attend.replicated, sent(heads_of(own, attend)), e});
  int64_t at = 0;  // rows of the ranks before
  std::vector<TensorView> out(ranks), in(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    const HeadPart theirs = heads_of(rank, attend);
    in[rank] = qkv.slice(0, at, tokens_.rows(rank));
    at += tokens_.rows(rank);
    out[rank] = rank == own ? in[rank] : context.arena.alloc(attend.q.dtype, {n, sent(theirs), e});
    pack(mine, theirs, out[rank]);
  }
  if (attend.replicated > 0)
    pack(replicated_rows(attend), heads_of(own, attend), qkv.slice(0, at, attend.replicated));
  group_.all_to_all_v(stream, tag, out, in);
  return qkv;
}

// Writes `result` [S + R, h, E] of this rank's heads to attend.out.
void UlyssesMixer::to_tokens(Context& context, const Attend& attend, const AttendTags& tags,
                             const TensorView& result) {
  Stream& stream = context.stream;
  const int ranks = group_.size(), own = group_.rank();
  const Arena::Scope scope(context.arena);
  std::vector<TensorView> out(ranks), in(ranks);
  const auto unpack = [&](const TensorView& to) {
    for (int rank = 0; rank < ranks; ++rank) {
      const Range theirs = heads_of(rank, attend).q;
      copy(stream, in[rank], to.slice(1, theirs.begin, theirs.size()));
    }
  };
  const auto alloc = [&](int64_t rows, int rank) {
    return context.arena.alloc(result.dtype, {rows, heads_of(rank, attend).q.size(), result[2]});
  };
  int64_t at = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    out[rank] = result.slice(0, at, tokens_.rows(rank));
    at += tokens_.rows(rank);
    in[rank] = rank == own ? out[rank] : alloc(tokens_.rows(own), rank);
  }
  group_.all_to_all_v(stream, tags(Payload::kHeadsOut), out, in);
  unpack(own_rows(attend).out);
  if (attend.replicated == 0) return;
  const TensorView replicated = result.slice(0, at, attend.replicated);
  for (int rank = 0; rank < ranks; ++rank)
    in[rank] = rank == own ? replicated : alloc(attend.replicated, rank);
  group_.all_gather_v(stream, tags(Payload::kHeadsOut, 1), replicated, in);
  unpack(replicated_rows(attend).out);
}

void UlyssesMixer::attend(Context& context, const Attend& attend) {
  const int own = group_.rank();
  CHECK(attend.q[0] - attend.replicated == tokens_.rows(own), "rows", attend.q[0], "tokens",
        tokens_.rows(own), "replicated", attend.replicated);
  const Arena::Scope scope(context.arena);
  const HeadPart mine = heads_of(own, attend);
  const AttendTags tags = take_tags(attend.layer, 2);
  const TensorView qkv = to_heads(context, attend, tags(Payload::kHeadsIn));
  Attend inner = attend;  // the ropes among it: the inner mixer decides whose keys are rotated
  inner.q = qkv.slice(1, 0, mine.q.size());
  inner.k = qkv.slice(1, mine.q.size(), mine.kv.size());
  inner.v = qkv.slice(1, mine.q.size() + mine.kv.size(), mine.kv.size());
  inner.out = context.arena.alloc(attend.q.dtype, {qkv[0], mine.q.size(), qkv[2]});
  Context whole = context;
  whole.tokens = tokens_.joined();
  whole.tokens.total = context.tokens.total;
  inner_->attend(whole, inner);
  to_tokens(context, attend, tags, inner.out);
}

}  // namespace weft
