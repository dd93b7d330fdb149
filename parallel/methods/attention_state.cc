#include "parallel/methods/attention_state.h"

#include <algorithm>

#include "kernels/copy.h"
#include "parallel/context.h"

namespace weft {

namespace {

// The number of keys of `keys` that the last query of `queries` sees under a causal mask.
int64_t keys_seen(const Range& queries, const Range& keys) {
  return std::clamp<int64_t>(queries.end - keys.begin, 0, keys.size());
}

}  // namespace

AttentionState alloc_state(Arena& arena, int64_t rows, int64_t heads, int64_t head_dim) {
  return {arena.alloc(DType::kF32, {rows, heads, head_dim}),
          arena.alloc(DType::kF32, {heads, rows})};
}

AttentionState state_in(const TensorView& memory, int64_t rows, int64_t heads, int64_t head_dim) {
  const TensorView flat = memory.reshape({memory.count()});
  const int64_t out = rows * heads * head_dim, lse = heads * rows;
  return {flat.slice(0, 0, out).reshape({rows, heads, head_dim}),
          flat.slice(0, out, lse).reshape({heads, rows}), flat.slice(0, 0, out + lse)};
}

int64_t first_seeing(const TokenRanges& queries, const TokenRanges& keys, Mask mask) {
  if (mask == Mask::kFull) return 0;
  int64_t row = 0;
  for (const Range& range :
       queries.ranges)  // ranges ascend, so the rows that see a key are the last ones
    row += std::clamp<int64_t>(keys.ranges[0].begin - range.begin, 0, range.size());
  return row;
}

void attend_block(Context& context, const Attend& attend, const TensorView& q,
                  const TokenRanges& queries, const KeyBlock& block, const AttentionState& state) {
  CHECK(q[0] == queries.size() && block.k[0] == block.tokens.size(), "q", q.to_string_shape(), "k",
        block.k.to_string_shape(), "tokens", queries.size(), block.tokens.size());
  if (attend.mask == Mask::kFull) {
    const KVSegment all[] = {{.k = block.k, .v = block.v}, block.replicated};
    attention(context.stream, {.q = q,
                               .segments = {all, size_t{block.replicated.k ? 2u : 1u}},
                               .scale = attend.scale,
                               .format = attend.format,
                               .out = state.out,
                               .lse = state.lse});
    return;
  }
  CHECK(!block.replicated.k, "replicated keys under a causal mask");
  // A call takes queries of one contiguous range; their keys may lie in several.
  int64_t row = 0;
  std::vector<KVSegment> segments;
  for (const Range& range : queries.ranges) {
    segments.clear();
    bool hidden = false;
    int64_t key_row = 0;
    for (const Range& keys : block.tokens.ranges) {
      const int64_t seen = keys_seen(range, keys);
      if (seen > 0)
        segments.push_back({.k = block.k.slice(0, key_row, seen),
                            .v = block.v.slice(0, key_row, seen),
                            .position = keys.begin});
      hidden = hidden || (seen > 0 && keys.begin + seen - 1 > range.begin);
      key_row += keys.size();
    }
    const AttentionState part = state.rows(row, range.size());
    attention(context.stream, {.q = q.slice(0, row, range.size()),
                               .segments = segments,
                               .scale = attend.scale,
                               .causal = hidden,
                               .query_position = range.begin,
                               .format = attend.format,
                               .out = part.out,
                               .lse = part.lse});
    row += range.size();
  }
}

namespace {

// The values from one state to the next, so that each begins at 64 bytes.
int64_t state_pitch(int64_t rows, int64_t heads, int64_t head_dim) {
  return (rows * heads * (head_dim + 1) + 15) / 16 * 16;
}

}  // namespace

ReplicatedAttention::ReplicatedAttention(Context& context, const Attend& attend, int blocks)
    : context_(context), attend_(replicated_rows(attend)) {
  if (attend_.replicated == 0) return;
  CHECK(attend_.mask == Mask::kFull, "replicated rows under a causal mask");
  const TensorView& q = attend_.q;
  states_ = context.arena.alloc(DType::kF32, {blocks + 1, state_pitch(q[0], q[1], q[2])});
  see(blocks, attend_.k, attend_.v);
}

AttentionState ReplicatedAttention::state(int block) const {
  return state_in(states_.select(0, block), attend_.q[0], attend_.q[1], attend_.q[2]);
}

void ReplicatedAttention::see(int block, const TensorView& k, const TensorView& v) {
  if (attend_.replicated == 0) return;
  const KVSegment keys{.k = k, .v = v};
  const AttentionState out = state(block);
  attention(context_.stream, {.q = attend_.q,
                              .segments = {&keys, 1},
                              .scale = attend_.scale,
                              .format = attend_.format,
                              .out = out.out,
                              .lse = out.lse});
}

KVSegment ReplicatedAttention::keys() const {
  if (attend_.replicated == 0) return {};
  return {.k = attend_.k, .v = attend_.v};
}

void ReplicatedAttention::write() const {
  if (attend_.replicated == 0) return;
  const AttentionState sum = state(0);
  for (int block = 1; block < states_[0]; ++block) {
    const AttentionState next = state(block);
    merge_attention(context_.stream, sum.out, sum.lse, next.out, next.lse);
  }
  copy(context_.stream, sum.out, attend_.out);
}

}  // namespace weft
