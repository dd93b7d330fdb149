#include "parallel/token_mixer.h"

#include "kernels/copy.h"
#include "parallel/context.h"

namespace weft {

namespace {

Attend rows(const Attend& attend, int64_t begin, int64_t count) {
  Attend cut = attend;
  for (TensorView* view : {&cut.q, &cut.k, &cut.v, &cut.out}) *view = view->slice(0, begin, count);
  return cut;
}

}  // namespace

Attend own_rows(const Attend& attend) {
  Attend own = rows(attend, 0, attend.q[0] - attend.replicated);
  own.replicated = 0;
  return own;
}

Attend replicated_rows(const Attend& attend) {
  return rows(attend, attend.q[0] - attend.replicated, attend.replicated);
}

void TokenMixer::begin(const Pass& pass) {
  begun_ = true;
  pass_ = pass;
  taken_.clear();
}

AttendTags TokenMixer::take_tags(int layer, int hops) {
  CHECK(begun_, "an attend of layer", layer, "before begin()");
  int& taken = taken_[layer];
  const AttendTags tags{pass_, layer, taken};
  taken += hops;
  return tags;
}

namespace {

// Applies a norm, a rope, or both to rows of q and k. A null rope leaves positions out.
void norm_and_rotate(Context& context, const Attend& part, const HeadNorms& norms, const Rope* rope,
                     int64_t first) {
  Stream& stream = context.stream;
  for (const auto& [x, weight] : {std::pair{part.q, norms.q}, std::pair{part.k, norms.k}}) {
    const HeadNorm norm{.weight = weight, .eps = norms.eps};
    if (weight && rope)
      rms_norm_rope(stream, x, norm, *rope, first, x);
    else if (weight)
      norm_heads(stream, x, norm);
    else if (rope)
      apply_rope(stream, x, *rope, first, x);
  }
}

}  // namespace

void norm_and_attend(Context& context, TokenMixer& mixer, Attend attend) {
  if (!mixer.norms_heads()) {
    norm_and_rotate(context, own_rows(attend), attend.norms, nullptr, 0);
    norm_and_rotate(context, replicated_rows(attend), attend.replicated_norms, nullptr, 0);
    attend.norms = attend.replicated_norms = {};
  }
  mixer.attend(context, attend);
}

void apply_positions(Context& context, const Attend& attend) {
  const TokenRanges& tokens = context.tokens;
  const int64_t n = attend.q[0] - attend.replicated;
  if (attend.rope) {
    CHECK(tokens.size() == n && attend.k[0] == attend.q[0], "tokens", tokens.size(), "replicated",
          attend.replicated, "q", attend.q.to_string_shape(), "k", attend.k.to_string_shape());
    CHECK(!attend.beside_rope || attend.mask == Mask::kFull, "a mask over tokens beside a grid");
    const auto& grid = attend.rope->grid;
    const int64_t end = attend.beside_rope ? grid[0] * grid[1] * grid[2] : tokens.total;
    int64_t row = 0;
    const auto rotate = [&](const Range& range, const Rope* rope, int64_t first) {
      norm_and_rotate(context, rows(attend, row, range.size()), attend.norms, rope, first);
      row += range.size();
    };
    for (const Range& range : tokens.ranges) {
      const Range own = intersection(range, {0, end}),
                  beside = intersection(range, {end, tokens.total});
      if (own.size() > 0) rotate(own, attend.rope, own.begin);
      if (beside.size() > 0) rotate(beside, attend.beside_rope, beside.begin - end);
    }
  } else {
    norm_and_rotate(context, own_rows(attend), attend.norms, nullptr, 0);
  }
  if (attend.replicated == 0) return;
  const Rope* rope = attend.replicated_rope;
  const int64_t positions = rope ? rope->grid[0] * rope->grid[1] * rope->grid[2] : 0;
  CHECK(positions <= attend.replicated, "positions", positions, "replicated", attend.replicated);
  norm_and_rotate(context, rows(attend, n, positions), attend.replicated_norms, rope, 0);
  norm_and_rotate(context, rows(attend, n + positions, attend.replicated - positions),
                  attend.replicated_norms, nullptr, 0);
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
  const Attend own_tokens = own_rows(attend);
  append_to_cache(context.stream, attend.past, own_tokens.k, own_tokens.v);
  const bool causal = attend.mask == Mask::kCausal;
  const int64_t position = causal && !tokens.ranges.empty() ? tokens.ranges[0].begin : 0;
  // A causal mask counts positions along one contiguous range.
  CHECK(!causal || (tokens.ranges.size() <= 1 && attend.replicated == 0), "causal over",
        tokens.ranges.size(), "token ranges, replicated", attend.replicated);

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
