#include "parallel/methods/attention_state.h"

#include <algorithm>

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
          flat.slice(0, out, lse).reshape({heads, rows})};
}

size_t state_arena_bytes(int64_t rows, int64_t heads, int64_t head_dim) {
  return arena_bytes(DType::kF32, {rows, heads, head_dim}) +
         arena_bytes(DType::kF32, {heads, rows});
}

int64_t first_seeing(const TokenRanges& queries, const TokenRanges& keys, Mask mask) {
  if (mask == Mask::kFull) return 0;
  int64_t row = 0;
  for (const Range& range :
       queries.ranges)  // ranges ascend, so the rows that see a key are the last ones
    row += std::clamp<int64_t>(keys.ranges[0].begin - range.begin, 0, range.size());
  return row;
}

int64_t visible_pairs(const TokenRanges& queries, const TokenRanges& keys, Mask mask) {
  if (mask == Mask::kFull) return queries.size() * keys.size();
  int64_t pairs = 0;
  for (const Range& q : queries.ranges)
    for (const Range& k : keys.ranges) {
      // Query i sees i - k.begin + 1 keys where that lies between 1 and all of them.
      const int64_t some = std::clamp(k.begin, q.begin, q.end),
                    all = std::clamp(k.end, some, q.end);
      const int64_t rows = all - some, first = some - k.begin + 1;
      pairs += rows * first + rows * (rows - 1) / 2 + (q.end - all) * k.size();
    }
  return pairs;
}

void attend_block(Context& context, const Attend& attend, const TensorView& q,
                  const TokenRanges& queries, const KeyBlock& block, const AttentionState& state) {
  CHECK(q[0] == queries.size() && block.k[0] == block.tokens.size(), "q", q.to_string_shape(), "k",
        block.k.to_string_shape(), "tokens", queries.size(), block.tokens.size());
  if (attend.mask == Mask::kFull) {
    const KVSegment all{.k = block.k, .v = block.v};
    attention(context.stream, {.q = q,
                               .segments = {&all, 1},
                               .scale = attend.scale,
                               .format = attend.format,
                               .out = state.out,
                               .lse = state.lse});
    return;
  }
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

}  // namespace weft
