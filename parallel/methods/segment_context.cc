#include "parallel/methods/segment_context.h"

#include "kernels/copy.h"
#include "parallel/context.h"

namespace weft {

FeatureCache& SegmentContext::cache(const TensorView& keys) {
  if (cache_) return *cache_;
  FeatureDescription description{.rows = rows_.size(),
                                 .row = {2 * keys[1], keys[2]},
                                 .versions = 1,
                                 .dtype = keys.dtype,
                                 .device = keys.device};
  for (int set = 0; set < sets_; ++set)
    for (int branch : branches_)
      for (int layer = layers_.begin; layer < layers_.end; ++layer)
        description.keys.push_back({.segment = set, .branch = branch, .layer = layer});
  return cache_.emplace(nullptr, std::move(description));
}

void SegmentContextMixer::attend(Context& context, const Attend& attend) {
  CHECK(!attend.past && attend.replicated == 0 && attend.mask == Mask::kFull && attend.rope,
        "layer", attend.layer, "replicated", attend.replicated);
  CHECK(attend.q[0] == context.tokens.total, "rows", attend.q[0], "tokens", context.tokens.total);
  const Range& rows = context_.rows_;
  const SegmentContext::Use& use = context_.use_;
  const auto key = [&](int set) {
    return FeatureKey{.segment = set, .branch = context.pass.branch, .layer = attend.layer};
  };
  const int64_t heads = attend.k[1];
  const Arena::Scope scope(context.arena);
  std::vector<KVSegment> segments{{.k = attend.k, .v = attend.v}};
  if (use.reads) {
    const TensorView kept = context_.cache(attend.k).own(key(use.reads_set), *use.reads);
    const TensorView k = context.arena.alloc(attend.k.dtype, {rows.size(), heads, attend.k[2]});
    apply_rope(context.stream, kept.slice(1, 0, heads), *use.rope, 0, k);
    segments.push_back({.k = k, .v = kept.slice(1, heads, heads)});
  }
  // The old keys have been copied, so the new ones may take their place; the old values are read
  // until the attention has ended.
  TensorView kept;
  if (use.keeps) {
    kept = context_.cache(attend.k).write(key(use.keeps_set), *use.keeps);
    copy(context.stream, attend.k.slice(0, rows.begin, rows.size()), kept.slice(1, 0, heads));
  }
  apply_positions(context, attend);
  attention(context.stream, {.q = attend.q,
                             .segments = segments,
                             .scale = attend.scale,
                             .format = attend.format,
                             .out = attend.out});
  if (use.keeps)
    copy(context.stream, attend.v.slice(0, rows.begin, rows.size()), kept.slice(1, heads, heads));
}

}  // namespace weft
