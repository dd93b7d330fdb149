#pragma once
// The bytes that the parallel methods send and keep, as the headers of the methods state them. The
// product counts what it sends and holds; tests compare the counts with these.
#include <algorithm>

#include "parallel/communicator.h"
#include "parallel/feature_cache.h"
#include "parallel/methods/attention_state.h"
#include "parallel/methods/causal_balance.h"
#include "parallel/methods/causal_window.h"
#include "parallel/methods/kv_cache.h"
#include "parallel/methods/mixer_factory.h"
#include "parallel/partition.h"

namespace weft {

// The sizes of an attention, except for the rank's tokens. Formulas of bytes take them.
struct AttendShape {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  DType dtype = DType::kF32;
  int64_t replicated = 0;
  int64_t element() const { return static_cast<int64_t>(size_of(dtype)); }
};

// Keys and values of one token.
inline int64_t key_bytes(const AttendShape& shape) {
  return 2 * shape.kv_heads * shape.head_dim * static_cast<int64_t>(shape.element());
}
// An attention state of one token.
inline int64_t state_bytes(const AttendShape& shape) {
  return shape.heads * (shape.head_dim + 1) * static_cast<int64_t>(sizeof(float));
}

// The functions below, named ..._sent_bytes, give what `rank` sends for one layer.
inline int64_t ulysses_sent_bytes(const SequenceMap& tokens, int rank, const AttendShape& shape) {
  const int ranks = tokens.size();
  const auto heads = [&](int of) {
    return partition_heads(shape.heads, shape.kv_heads, ranks, of);
  };
  int64_t elements = 0;
  for (int other = 0; other < ranks; ++other)
    if (other != rank)
      elements += tokens.rows(rank) * (heads(other).q.size() + 2 * heads(other).kv.size()) +
                  (tokens.rows(other) + shape.replicated) * heads(rank).q.size();
  return elements * shape.head_dim * shape.element();
}

inline int64_t ring_sent_bytes(const SequenceMap& keys, int rank, const AttendShape& shape) {
  const int ranks = keys.size();
  int64_t rows = 0;
  for (int other = 0; other < ranks; ++other)
    if (other != (rank + 1) % ranks) rows += keys.rows(other);
  return ranks == 1 ? 0 : rows * key_bytes(shape);
}

// Queries go around as far as somebody there or further on sees them; states go home from where
// they are seen.
inline int64_t token_ring_sent_bytes(const SequenceMap& tokens, int rank, const AttendShape& shape,
                                     Mask mask = Mask::kFull) {
  const int ranks = tokens.size(), step = mask == Mask::kCausal ? ranks - 1 : 1;
  const auto seeing = [&](int owner, int hop) {
    return first_seeing(tokens[owner], tokens[(owner + hop * step) % ranks], mask);
  };
  int64_t forward = 0, home = (ranks - 1) * shape.replicated;
  for (int hop = 0; hop < ranks; ++hop) {
    const int owner = (rank + hop * (ranks - step)) % ranks;
    int64_t travelling = tokens.rows(owner);  // the first row that does
    for (int later = hop + 1; later < ranks; ++later)
      travelling = std::min(travelling, seeing(owner, later));
    forward += tokens.rows(owner) - travelling;
    if (hop > 0) home += tokens.rows(owner) - seeing(owner, hop);
  }
  return forward * shape.heads * shape.head_dim * shape.element() + home * state_bytes(shape);
}

inline int64_t light_seq_sent_bytes(const SequenceMap& tokens, int rank, const AttendShape& shape) {
  const int ranks = tokens.size();
  int64_t keys = 0, queries = 0, states = 0;  // rows
  for (int time = 1; time <= ranks / 2; ++time) {
    const BalanceStep step = balance_step(ranks, rank, time);
    const int helper = rank + time - ranks;
    if (helper < 0) keys += tokens.rows(rank);
    if (helper >= 0 && !balance_step(ranks, helper, time).idle()) queries += tokens.rows(rank);
    if (!step.idle() && step.queries != rank) states += tokens.rows(step.queries);
  }
  return keys * key_bytes(shape) + queries * shape.heads * shape.head_dim * shape.element() +
         states * state_bytes(shape);
}

inline int64_t dual_scope_sent_bytes(const ClipFrames& frames, int rank, const AttendShape& shape) {
  int64_t sent = 0;
  for (int peer = 0; peer < frames.clips(); ++peer)
    if (peer != rank) sent += frames.shared(rank, peer).size() + frames.globals(rank).size();
  return sent * frames.frame_tokens() * key_bytes(shape);
}

// Bytes of a row in a displaced step.
inline int64_t displaced_row_bytes(const Displaced& method, const AttendShape& shape) {
  return method.code == WireCode::kNone ? key_bytes(shape)
                                        : 2 * (shape.kv_heads * shape.head_dim + 1);
}
// In an exact step, and in a displaced one for the next, where the window is `window`.
inline int64_t exact_sent_bytes(const PatchRows& rows, int rank, const AttendShape& shape) {
  return (rows.ranks() - 1) * rows.rank(rank).size() * key_bytes(shape);
}
inline int64_t displaced_sent_bytes(const PatchRows& rows, int rank, const AttendShape& shape,
                                    std::optional<double> window) {
  int64_t sent = 0;
  for (int peer = 0; peer < rows.ranks(); ++peer)
    if (peer != rank) sent += rows.shared(rank, peer, window).size();
  return sent * displaced_row_bytes(rows.method(), shape);
}

// One sum of `count` values.
inline int64_t tensor_sent_bytes(int64_t count, int ranks, int rank, AllReduce algorithm) {
  if (ranks == 1) return 0;
  const int64_t element = sizeof(float);
  if (chosen(algorithm, count, ranks) == AllReduce::kStar)
    return element * count * (rank == 0 ? ranks - 1 : 1);
  const auto chunk = [&](int index) { return partition(count, ranks, index % ranks).size(); };
  return element * (2 * count - chunk(rank + 1) - chunk(rank + 2));
}

// A broadcast: the root sends to all, a rank of a binomial tree to its children, or one of a chain
// to the next rank, in pieces.
inline CommCounters::Count broadcast_sent(int64_t bytes, int ranks, int rank, int root) {
  const int place = (rank + ranks - root) % ranks;
  const auto [shape, pieces] = broadcast_way(bytes, ranks);
  int64_t to = 0;  // so many ranks
  for (int further = 1; place + further < ranks; further *= 2) to += further > place;
  if (shape == BroadcastWay::Shape::kStar) to = place == 0 ? ranks - 1 : 0;
  if (shape == BroadcastWay::Shape::kChain) to = place + 1 < ranks;
  return bytes == 0 ? CommCounters::Count{} : CommCounters::Count{to * pieces, to * bytes};
}

// One frame's attention in a band of `rows` latent rows.
inline int64_t band_attention_bytes(int64_t rows, int64_t width, int64_t channels, int bands,
                                    int64_t element_bytes) {
  return 2 * rows * width * channels * element_bytes * (bands - 1);
}

// All layers of a sequence that moves.
inline int64_t move_sent_bytes(const KVMove& move, int rank, const KVShape& shape) {
  int64_t sent = 0;
  for (int reader = 0; reader < static_cast<int>(move.held.size()); ++reader)
    if (reader != rank) sent += move.heads(rank, reader).size();
  return 2 * shape.layers * move.held[rank].tokens.size() * sent * shape.head_dim *
         static_cast<int64_t>(size_of(shape.dtype));
}

inline int64_t feature_row_bytes(const FeatureDescription& description) {
  auto bytes = static_cast<int64_t>(size_of(description.dtype));
  for (const int64_t extent : description.row) bytes *= extent;
  return bytes;
}
// One exchange.
inline int64_t feature_sent_bytes(const FeatureDescription& description) {
  int64_t rows = 0;
  for (const FeatureLink& link : description.links) rows += link.sent.size();
  return rows * feature_row_bytes(description);
}

// The functions below, named ..._cache_bytes, give what a rank holds from step to step.
inline size_t feature_cache_bytes(const FeatureDescription& description) {
  int64_t rows = description.rows;
  for (const FeatureLink& link : description.links) rows += link.received.size();
  return description.keys.size() *
         static_cast<size_t>(description.versions * rows * feature_row_bytes(description));
}
// For one layer and branch.
inline size_t displaced_cache_bytes(const PatchRows& rows, int rank, const AttendShape& shape) {
  const Displaced& method = rows.method();
  int64_t held = rows.rank(rank).size();
  for (int peer = 0; peer < rows.ranks(); ++peer)
    if (peer != rank) held += rows.shared(peer, rank, method.widest()).size();
  const int64_t base = method.code == WireCode::kResidualFp8 ? key_bytes(shape) : 0;
  return static_cast<size_t>(held * (displaced_row_bytes(method, shape) + base));
}
// For one layer and branch, and `rows` rows of all patches.
inline size_t pipefusion_cache_bytes(int64_t rows, const AttendShape& shape) {
  return static_cast<size_t>(rows * key_bytes(shape));
}
inline size_t segment_context_cache_bytes(int layers, int branches, int64_t rows,
                                          const AttendShape& shape) {
  return static_cast<size_t>(int64_t{layers} * branches * rows * key_bytes(shape));
}
inline size_t causal_window_cache_bytes(const CausalWindowShape& window, const AttendShape& shape) {
  const int64_t layers = window.layers.end - window.layers.begin;
  const int64_t tokens =
      window.steps.size() * window.frames * window.frame_tokens + window.sinks * window.sink_tokens;
  const int64_t row = is_coded(window.kept)
                          ? shape.head_dim + 1
                          : static_cast<int64_t>(shape.head_dim * shape.element());
  return static_cast<size_t>(layers * tokens * 2 * shape.kv_heads * row);
}

// One attend of the tokens that `description` has.
inline int64_t split_sent_bytes(const MixerDescription& description, const AttendShape& shape,
                                Mask mask) {
  const Layout& layout = description.mesh.layout();
  const int ulysses = layout[Axis::kUlysses];
  const int index = description.mesh.sequence_index(description.rank), own = index / ulysses;
  const SequenceMap& tokens = description.tokens;
  const SequenceMap blocks = tokens.blocks(ulysses);
  AttendShape inner = shape;
  const HeadPart part = partition_heads(shape.heads, shape.kv_heads, ulysses, index % ulysses);
  inner.heads = part.q.size();
  inner.kv_heads = part.kv.size();
  int64_t sent = 0;
  if (ulysses > 1)
    sent = ulysses_sent_bytes(tokens.slice(own * ulysses, ulysses), index % ulysses, shape);
  if (description.dual_scope)
    return sent + dual_scope_sent_bytes(
                      {blocks, {blocks.rows(), description.frames}, *description.dual_scope},
                      description.mesh.at(Axis::kClip, description.rank), inner);
  if (layout[Axis::kTokenRing] > 1) return sent + token_ring_sent_bytes(blocks, own, inner, mask);
  if (layout[Axis::kRing] == 1) return sent;
  if (description.balance == RingBalance::kLightSeq)
    return sent + light_seq_sent_bytes(blocks, own, inner);
  if (description.patches.pipefusion)
    return sent + ring_sent_bytes(PatchParts(*description.patches.pipefusion, tokens.size())
                                      .map(kAllPatches)
                                      .blocks(ulysses),
                                  own, inner);
  std::vector<TokenRanges> keys = description.held;  // of earlier passes, then the present ones
  keys.resize(blocks.size());
  for (int block = 0; block < blocks.size(); ++block) {
    keys[block].total = blocks[block].total;
    for (const Range& range : blocks[block].ranges) keys[block].append(range);
  }
  return sent + ring_sent_bytes(SequenceMap(std::move(keys)), own, inner);
}

// One attend, where patches are displaced in a displaced step; of all patches where they are
// computed one after the other: all keys go around a ring for each. `shape` has the heads that this
// rank's attend is given.
inline int64_t mixer_sent_bytes(const MixerDescription& description, const AttendShape& shape,
                                Mask mask = Mask::kFull) {
  if (description.patches.displaced) {
    std::vector<Range> ranks;
    for (int rank = 0; rank < description.tokens.size(); ++rank)
      ranks.push_back(description.tokens[rank].ranges.at(0));
    return displaced_sent_bytes({*description.patches.displaced, ranks},
                                description.mesh.at(Axis::kPatch, description.rank), shape,
                                description.patches.displaced->widest());
  }
  if (!description.patches.pipefusion) return split_sent_bytes(description, shape, mask);
  const PatchParts parts(*description.patches.pipefusion, description.tokens.size());
  MixerDescription one = description;
  int64_t sent = 0;
  for (int patch = 1; patch <= parts.patches(); ++patch) {
    one.tokens = parts.map(patch);
    sent += split_sent_bytes(one, shape, mask);
  }
  return sent;
}

}  // namespace weft
