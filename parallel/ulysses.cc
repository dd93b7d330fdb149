#include "parallel/ulysses.h"

#include "kernels/copy.h"
#include "parallel/context.h"

namespace weft {

namespace {

// Heads of rank `index`: whole groups of query heads with their key/value head.
struct Heads {
  Range q, kv;
  int64_t sent() const { return q.size() + 2 * kv.size(); }
};

Heads heads_of(int64_t heads, int64_t kv_heads, int ranks, int index) {
  const int64_t per_group = heads / kv_heads;
  const Range kv = partition(kv_heads, ranks, index);
  return {{kv.begin * per_group, kv.end * per_group}, kv};
}

}  // namespace

UlyssesMixer::UlyssesMixer(Communicator group, std::vector<Range> tokens,
                           std::unique_ptr<TokenMixer> inner)
    : group_(std::move(group)), tokens_(std::move(tokens)), inner_(std::move(inner)) {
  CHECK(static_cast<int>(tokens_.size()) == group_.size(), "tokens of", tokens_.size(), "ranks of",
        group_.size());
  for (size_t i = 1; i < tokens_.size(); ++i)
    CHECK(tokens_[i].begin == tokens_[i - 1].end, "tokens", to_string(tokens_[i]));
}

void UlyssesMixer::attend(Context& context, const Attend& attend) {
  Stream& stream = context.stream;
  const int ranks = group_.size(), own = group_.rank();
  const int64_t heads = attend.q[1], kv_heads = attend.k[1], e = attend.q[2], n = attend.q[0];
  CHECK(kv_heads >= ranks && heads % kv_heads == 0, "heads", heads, "kv heads", kv_heads, "ranks",
        ranks);
  CHECK(n == tokens_[own].size() && !attend.past, "rows", n, "tokens", to_string(tokens_[own]));
  apply_positions(context, attend);

  const Arena::Scope scope(context.arena);
  const DType dtype = attend.q.dtype;
  const Heads mine = heads_of(heads, kv_heads, ranks, own);
  const Range all{tokens_.front().begin, tokens_.back().end};
  const TensorView qkv = context.arena.alloc(dtype, {all.size(), mine.sent(), e});
  std::vector<TensorView> out(ranks), in(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    const Heads theirs = heads_of(heads, kv_heads, ranks, rank);
    in[rank] = qkv.slice(0, tokens_[rank].begin - all.begin, tokens_[rank].size());
    out[rank] = rank == own ? in[rank] : context.arena.alloc(dtype, {n, theirs.sent(), e});
    copy(stream, attend.q.slice(1, theirs.q.begin, theirs.q.size()),
         out[rank].slice(1, 0, theirs.q.size()));
    for (int64_t part = 0; part < 2; ++part)
      copy(stream, (part ? attend.v : attend.k).slice(1, theirs.kv.begin, theirs.kv.size()),
           out[rank].slice(1, theirs.q.size() + part * theirs.kv.size(), theirs.kv.size()));
  }
  Tag tag{.kind = Traffic::kHeadsIn,
          .step = context.pass.step,
          .branch = context.pass.branch,
          .layer = attend.layer,
          .segment = context.pass.micro};
  group_.all_to_all_v(stream, tag, out, in);

  const TensorView result = context.arena.alloc(dtype, {all.size(), mine.q.size(), e});
  Context whole{stream,
                context.arena,
                context.mixer,
                context.reducer,
                context.halo,
                context.pass,
                {{all}, context.tokens.total},
                context.observer};
  inner_->attend(whole, {.layer = attend.layer,
                         .q = qkv.slice(1, 0, mine.q.size()),
                         .k = qkv.slice(1, mine.q.size(), mine.kv.size()),
                         .v = qkv.slice(1, mine.q.size() + mine.kv.size(), mine.kv.size()),
                         .out = result,
                         .rope = nullptr,
                         .mask = attend.mask,
                         .scale = attend.scale,
                         .past = nullptr});

  for (int rank = 0; rank < ranks; ++rank) {
    const int64_t theirs = heads_of(heads, kv_heads, ranks, rank).q.size();
    out[rank] = result.slice(0, tokens_[rank].begin - all.begin, tokens_[rank].size());
    in[rank] = rank == own ? out[rank] : context.arena.alloc(dtype, {n, theirs, e});
  }
  tag.kind = Traffic::kHeadsOut;
  group_.all_to_all_v(stream, tag, out, in);
  for (int rank = 0; rank < ranks; ++rank) {
    const Range theirs = heads_of(heads, kv_heads, ranks, rank).q;
    copy(stream, in[rank], attend.out.slice(1, theirs.begin, theirs.size()));
  }
}

int64_t ulysses_sent_bytes(const std::vector<Range>& tokens, int rank, int64_t heads,
                           int64_t kv_heads, int64_t head_dim, int64_t element_bytes) {
  const int ranks = static_cast<int>(tokens.size());
  const Heads mine = heads_of(heads, kv_heads, ranks, rank);
  int64_t others = 0;
  for (const Range& range : tokens) others += range.size();
  others -= tokens[rank].size();
  const int64_t in = tokens[rank].size() * (heads + 2 * kv_heads - mine.sent());
  return (in + mine.q.size() * others) * head_dim * element_bytes;
}

}  // namespace weft
