#include "parallel/token_mixer.h"

#include "kernels/copy.h"
#include "parallel/context.h"

namespace weft {

void apply_positions(Context& context, const Attend& attend) {
  if (!attend.rope) return;
  const TokenRanges& tokens = context.tokens;
  CHECK(tokens.size() == attend.q[0] && tokens.size() == attend.k[0], "tokens", tokens.size(), "q",
        attend.q.to_string_shape(), "k", attend.k.to_string_shape());
  int64_t row = 0;
  for (const Range& range : tokens.ranges) {
    for (const TensorView* x : {&attend.q, &attend.k}) {
      const TensorView rows = x->slice(0, row, range.size());
      apply_rope(context.stream, rows, *attend.rope, range.begin, rows);
    }
    row += range.size();
  }
}

void append_to_cache(Stream& stream, const ContextKV* past, const TensorView& k,
                     const TensorView& v) {
  if (!past || past->append_slots.empty()) return;
  int64_t row = 0;
  for (const KVSegment& piece : past->append_slots) {
    const int64_t n = piece.k[0];
    copy(stream, k.slice(0, row, n), piece.k);
    copy(stream, v.slice(0, row, n), piece.v);
    row += n;
  }
  CHECK(row == k[0], "append slots for", row, "rows of", k[0]);
}

void FullMixer::attend(Context& context, const Attend& attend) {
  const TokenRanges& tokens = context.tokens;
  apply_positions(context, attend);
  append_to_cache(context.stream, attend.past, attend.k, attend.v);
  const bool causal = attend.mask == Mask::kCausal;
  const int64_t position = causal && !tokens.ranges.empty() ? tokens.ranges[0].begin : 0;
  // A causal mask counts positions along one contiguous range.
  CHECK(!causal || tokens.ranges.size() <= 1, "causal over", tokens.ranges.size(), "token ranges");

  const KVSegment own{.k = attend.k, .v = attend.v, .position = position};
  std::vector<KVSegment> segments;
  if (attend.past) segments = attend.past->segments;
  segments.push_back(own);
  attention(context.stream, {.q = attend.q,
                             .segments = segments,
                             .scale = attend.scale,
                             .causal = causal,
                             .query_position = position,
                             .format = attend.format,
                             .out = attend.out});
}

}  // namespace weft
