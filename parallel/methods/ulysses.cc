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

void UlyssesMixer::attend(Context& context, const Attend& attend) {
  Stream& stream = context.stream;
  const int ranks = group_.size(), own = group_.rank();
  const int64_t heads = attend.q[1], kv_heads = attend.k[1], e = attend.q[2], n = attend.q[0];
  CHECK(n == tokens_.rows(own), "rows", n, "tokens", tokens_.rows(own));
  apply_positions(context, attend);

  const Arena::Scope scope(context.arena);
  const DType dtype = attend.q.dtype;
  const HeadPart mine = partition_heads(heads, kv_heads, ranks, own);
  const TensorView qkv = context.arena.alloc(dtype, {tokens_.rows(), sent(mine), e});
  int64_t at = 0;  // rows of the ranks before
  std::vector<TensorView> out(ranks), in(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    const HeadPart theirs = partition_heads(heads, kv_heads, ranks, rank);
    in[rank] = qkv.slice(0, at, tokens_.rows(rank));
    at += tokens_.rows(rank);
    out[rank] = rank == own ? in[rank] : context.arena.alloc(dtype, {n, sent(theirs), e});
    copy(stream, attend.q.slice(1, theirs.q.begin, theirs.q.size()),
         out[rank].slice(1, 0, theirs.q.size()));
    for (int64_t part = 0; part < 2; ++part)
      copy(stream, (part ? attend.v : attend.k).slice(1, theirs.kv.begin, theirs.kv.size()),
           out[rank].slice(1, theirs.q.size() + part * theirs.kv.size(), theirs.kv.size()));
  }
  Tag tag{.kind = Payload::kHeadsIn, .pass = context.pass, .layer = attend.layer};
  group_.all_to_all_v(stream, tag, out, in);

  const TensorView result = context.arena.alloc(dtype, {tokens_.rows(), mine.q.size(), e});
  Context whole = context;
  whole.tokens = tokens_.joined();
  whole.tokens.total = context.tokens.total;
  inner_->attend(whole, {.layer = attend.layer,
                         .q = qkv.slice(1, 0, mine.q.size()),
                         .k = qkv.slice(1, mine.q.size(), mine.kv.size()),
                         .v = qkv.slice(1, mine.q.size() + mine.kv.size(), mine.kv.size()),
                         .out = result,
                         .rope = nullptr,
                         .mask = attend.mask,
                         .scale = attend.scale,
                         .format = attend.format,
                         .past = attend.past});

  at = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const int64_t theirs = partition_heads(heads, kv_heads, ranks, rank).q.size();
    out[rank] = result.slice(0, at, tokens_.rows(rank));
    at += tokens_.rows(rank);
    in[rank] = rank == own ? out[rank] : context.arena.alloc(dtype, {n, theirs, e});
  }
  tag.kind = Payload::kHeadsOut;
  group_.all_to_all_v(stream, tag, out, in);
  for (int rank = 0; rank < ranks; ++rank) {
    const Range theirs = partition_heads(heads, kv_heads, ranks, rank).q;
    copy(stream, in[rank], attend.out.slice(1, theirs.begin, theirs.size()));
  }
}

int64_t ulysses_sent_bytes(const SequenceMap& tokens, int rank, int64_t heads, int64_t kv_heads,
                           int64_t head_dim, int64_t element_bytes) {
  const int ranks = tokens.size();
  int64_t elements = 0;
  for (int other = 0; other < ranks; ++other) {
    if (other == rank) continue;
    elements += tokens.rows(rank) * sent(partition_heads(heads, kv_heads, ranks, other)) +
                tokens.rows(other) * partition_heads(heads, kv_heads, ranks, rank).q.size();
  }
  return elements * head_dim * element_bytes;
}

size_t ulysses_arena_bytes(const SequenceMap& tokens, int rank, int64_t heads, int64_t kv_heads,
                           int64_t head_dim, DType dtype, size_t inner) {
  const HeadPart mine = partition_heads(heads, kv_heads, tokens.size(), rank);
  const auto bytes = [&](int64_t rows, int64_t width) {
    return arena_bytes(dtype, {rows, width, head_dim});
  };
  size_t held = bytes(tokens.rows(), sent(mine)) + bytes(tokens.rows(), mine.q.size()), back = 0;
  for (int other = 0; other < tokens.size(); ++other) {
    if (other == rank) continue;
    const HeadPart theirs = partition_heads(heads, kv_heads, tokens.size(), other);
    held += bytes(tokens.rows(rank), sent(theirs));
    back += bytes(tokens.rows(rank), theirs.q.size());
  }
  return held + std::max(inner, back);
}

}  // namespace weft
