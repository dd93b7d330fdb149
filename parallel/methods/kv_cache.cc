#include "parallel/methods/kv_cache.h"

#include <algorithm>

#include "kernels/copy.h"

namespace weft {

namespace {

bool holds(const Range& heads, int64_t head) { return heads.begin <= head && head < heads.end; }

// Copies `heads` of the cache's segments to dense rows of `out`; `first` is the cache's first head.
void gather(Stream& stream, const ContextKV& layer, TensorView KVSegment::*part, Range heads,
            int64_t first, const TensorView& out) {
  int64_t row = 0;
  for (const KVSegment& segment : layer.segments) {
    const TensorView rows = segment.*part;
    copy(stream, rows.slice(1, heads.begin - first, heads.size()), out.slice(0, row, rows[0]));
    row += rows[0];
  }
}

}  // namespace

Tensor KVPool::take() {
  CHECK(taken_ < limit_, "pages", taken_, "of", limit_);
  Tensor page;
  if (idle_.empty()) {
    page = Tensor(shape_.dtype, {shape_.layers, 2, shape_.rows, shape_.kv_heads, shape_.head_dim},
                  shape_.device);
  } else {
    page = std::move(idle_.back());
    idle_.pop_back();
  }
  ++taken_;
  return page;
}

void KVPool::give_back(Tensor page) {
  --taken_;
  idle_.push_back(std::move(page));
}

KVCache::KVCache(KVPool& pool) : pool_(&pool), layers_(pool.shape().layers) {}

KVCache::~KVCache() {
  for (Tensor& page : pages_) pool_->give_back(std::move(page));
}

void KVCache::reserve(const TokenRanges& tokens) {
  CHECK(reserved_.size() == 0, "reserved", reserved_.size());
  const int64_t pages = pool_->pages_for(held_.size() + tokens.size());
  const int64_t more = pages - static_cast<int64_t>(pages_.size());
  if (more > pool_->free_pages())
    throw Error(ErrorKind::kMemory,
                "the cache of keys and values is full: " + std::to_string(more) +
                    " more pages of " + std::to_string(pool_->shape().rows) +
                    " tokens are needed, " + std::to_string(pool_->free_pages()) + " of " +
                    std::to_string(pool_->limit()) + " are free");
  while (static_cast<int64_t>(pages_.size()) < pages) pages_.push_back(pool_->take());
  reserved_ = tokens;
  lay_out();
}

void KVCache::commit() {
  for (const Range& range : reserved_.ranges) held_.append(range);
  held_.total = reserved_.total;
  reserved_ = {};
  for (ContextKV& layer : layers_) {
    for (const KVSegment& piece : layer.append_slots) {
      KVSegment* last = layer.segments.empty() ? nullptr : &layer.segments.back();
      const bool goes_on = last && last->position + last->k[0] == piece.position &&
                           last->k.slice(0, last->k[0], 0).data == piece.k.data;
      if (goes_on) {
        last->k.extent[0] += piece.k[0];
        last->v.extent[0] += piece.v[0];
      } else {
        layer.segments.push_back(piece);
      }
    }
    layer.append_slots.clear();
  }
}

void KVCache::drop() {
  reserved_ = {};
  for (ContextKV& layer : layers_) layer.append_slots.clear();
  const auto needed = static_cast<size_t>(pool_->pages_for(held_.size()));
  for (; pages_.size() > needed; pages_.pop_back()) pool_->give_back(std::move(pages_.back()));
}

// Makes the append slots of the reserved tokens. A slot ends where its page or its range of tokens
// ends.
void KVCache::lay_out() {
  const int64_t page_rows = pool_->shape().rows;
  int64_t row = held_.size();
  for (const Range& range : reserved_.ranges)
    for (int64_t token = range.begin; token < range.end;) {
      const int64_t at = row % page_rows, n = std::min(range.end - token, page_rows - at);
      for (size_t layer = 0; layer < layers_.size(); ++layer) {
        const TensorView page =
            pages_[row / page_rows].view().select(0, static_cast<int64_t>(layer));
        layers_[layer].append_slots.push_back({.k = page.select(0, 0).slice(0, at, n),
                                               .v = page.select(0, 1).slice(0, at, n),
                                               .position = token});
      }
      token += n;
      row += n;
    }
}

Range KVMove::heads(int rank, int reader) const {
  Range out;
  for (int64_t head = held[rank].heads.begin; head < held[rank].heads.end; ++head) {
    if (!holds(wanted[reader].heads, head)) continue;
    const auto same = [&](int other) {
      return held[other].tokens.ranges == held[rank].tokens.ranges &&
             holds(held[other].heads, head);
    };
    int giver = reader;
    if (!same(reader))
      for (giver = 0; !same(giver);) ++giver;
    if (giver != rank) continue;
    if (out.size() == 0) out = {head, head};
    CHECK(out.end == head, "heads", to_string(out), "and", head);
    out.end = head + 1;
  }
  return out;
}

void move_cache(Communicator& group, Stream& stream, Arena& arena, const KVMove& move,
                const KVCache& from, KVCache& to) {
  const auto &held = move.held, &wanted = move.wanted;
  const int ranks = group.size(), own = group.rank();
  const KVShape& shape = from.shape();
  const int64_t e = shape.head_dim, total = wanted[own].tokens.size();
  CHECK(static_cast<int>(held.size()) == ranks && static_cast<int>(wanted.size()) == ranks,
        "places of", held.size(), wanted.size(), "ranks of", ranks);
  CHECK(wanted[own].tokens.ranges.size() == 1 && wanted[own].tokens.ranges[0].begin == 0 &&
            to.tokens().size() == 0,
        "tokens", total);
  struct DropOnError {
    KVCache& cache;
    ~DropOnError() { cache.drop(); }  // does nothing after commit()
  } const drop{to};
  to.reserve(wanted[own].tokens);
  for (int layer = 0; layer < shape.layers; ++layer) {
    const Arena::Scope scope(arena);
    std::vector<TensorView> out(ranks), in(ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      const auto buffer = [&](int giver, const Range& heads) {
        return arena.alloc(shape.dtype, {2, held[giver].tokens.size(), heads.size(), e});
      };
      const Range mine = move.heads(own, rank);
      out[rank] = buffer(own, mine);
      in[rank] = rank == own ? out[rank] : buffer(rank, move.heads(rank, own));
      if (out[rank].count() == 0) continue;
      const ContextKV& cache = from.layers()[layer];
      gather(stream, cache, &KVSegment::k, mine, held[own].heads.begin, out[rank].select(0, 0));
      gather(stream, cache, &KVSegment::v, mine, held[own].heads.begin, out[rank].select(0, 1));
    }
    group.all_to_all_v(stream, {.kind = Payload::kKeyValue, .layer = layer}, out, in);

    const TensorView whole = arena.alloc(shape.dtype, {2, total, wanted[own].heads.size(), e});
    for (int rank = 0; rank < ranks; ++rank) {
      if (in[rank].count() == 0) continue;
      const Range heads = move.heads(rank, own);
      const int64_t first = heads.begin - wanted[own].heads.begin;
      int64_t row = 0;
      for (const Range& range : held[rank].tokens.ranges) {
        for (int part = 0; part < 2; ++part)
          copy(stream, in[rank].select(0, part).slice(0, row, range.size()),
               whole.select(0, part)
                   .slice(0, range.begin, range.size())
                   .slice(1, first, heads.size()));
        row += range.size();
      }
    }
    append_to_cache(stream, &to.layers()[layer], whole.select(0, 0), whole.select(0, 1));
  }
  to.commit();
}

}  // namespace weft
