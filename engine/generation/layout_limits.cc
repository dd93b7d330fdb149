#include "engine/generation/layout_limits.h"

#include <algorithm>
#include <numeric>

namespace weft {

namespace {

// Notes the blocks in which a file stores the matrices whose columns belong to heads or to the
// feed-forward.
void limit_blocks(const TensorFile& file, const TransformerTraits& traits, LayoutLimits& out) {
  out.stored.head_size = traits.head_dim;
  for (const std::string& name : file.names()) {
    const TensorView like = file.describe(name);
    const std::optional<BlockType> type = like.rank == 2 ? file.blocks(name) : std::nullopt;
    if (!type) continue;
    const int64_t block = shape_of(*type).values;
    const auto stored = [&](int64_t& columns) { columns = std::lcm(columns, block); };
    if (like[1] == traits.heads * traits.head_dim) stored(out.stored.head_block);
    if (like[1] == traits.ffn_columns) stored(out.stored.ffn_block);
  }
}

}  // namespace

void limit_by(const TransformerTraits& traits, LayoutLimits& limits) {
  const auto least = [](int64_t& limit, int64_t value) {
    limit = limit ? std::min(limit, value) : value;
  };
  least(limits.heads, traits.heads);
  least(limits.kv_heads, traits.key_heads());
  least(limits.layers, traits.blocks);
  least(limits.ffn, traits.ffn_columns);
}

LayoutLimits limits_of(const JobFacts& facts, const Components& parts, WeightFormat weights) {
  LayoutLimits out;
  for (int model = 0; model < parts.experts(); ++model)
    limit_by(parts.expert_model(model).traits(), out);
  out.tokens = facts.sequence().tokens;
  out.method =
      facts.request.method->limit(facts.grid, parts.expert_model(0).joint_rows(out.tokens, 1) > 0);
  out.guided = facts.guided();
  out.whole_width = rounds_to_8bit(weights);
  out.whole_depth = facts.request.cache.kind == StepCacheKind::kTeaCache &&
                    !parts.expert_model(0).traits().embeds_at_end;
  if (weights == WeightFormat::kFile)
    for (int model = 0; model < parts.experts(); ++model)
      limit_blocks(*parts.model()->expert_files[model], parts.expert_model(model).traits(), out);
  return out;
}

ModelLimits model_limits(const Components& parts) {
  ModelLimits limits;
  const VaeTraits& vae = parts.vae_model().traits;
  const std::array<int64_t, 3>& patch = parts.expert_model(0).traits().patch;
  const SpeechChunks& chunks = parts.directory().chunks;
  limits.size_multiple =
      std::lcm(vae.spatial_factor * std::lcm(patch[1], patch[2]), chunks.size_multiple);
  limits.frame_multiple = chunks.any() ? 1 : vae.temporal_factor * patch[0];
  limits.max_frames = std::min(kMaxFrames, vae.max_frames);
  limits.experts = parts.experts();
  limits.boundary_ratio = parts.directory().boundary_ratio.value_or(0);
  limits.text_length = parts.model()->tokenizer->max_ids();
  limits.guided = parts.family().guidance != GuidanceForm::kTold || parts.traits().reads_guidance;
  return limits;
}

}  // namespace weft
