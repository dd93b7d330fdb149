#include "models/clip_towers/tower.h"

namespace weft {

EncoderBlocksConfig read_clip_blocks(ConfigReader& fields) {
  return EncoderBlocksConfig::read(fields, kClipBlockNames, EncoderActivation::kQuickGelu,
                                   {"gelu", "quick_gelu"});
}

TensorSizes clip_sizes(const TensorFile& file, const ClipNames& names) {
  constexpr int64_t kWidest = 1 << 18;
  return TensorSizes(
      file, [&names](const std::string& name) { return names(name).name; }, kWidest);
}

EncoderBlocksConfig clip_blocks_from_tensors(const TensorSizes& sizes, int64_t head_dim,
                                             const std::string& what) {
  EncoderBlocksConfig config;
  config.width = sizes.extent(kClipPositions, -1);
  config.ffn = sizes.extent(kClipFirstLayer, 0);
  config.names = kClipBlockNames;
  if (config.width % head_dim)
    sizes.refuse("a width of ", config.width,
                 " is not that of " + what + " (legal without one: multiples of ", head_dim, ")");
  config.heads = config.width / head_dim;
  config.layers = sizes.count("encoder.layers.", ".mlp.fc1.weight");
  return config;
}

CheckpointPart clip_tensors_of(const TensorFile& file, const EncoderBlocksConfig& config,
                               const std::vector<TensorSpec>& tensors, const ClipNames& names,
                               const WidthSlice& width) {
  WeightBinder binder(file, "encoder");
  // Positions by number, which old files hold, and layers that lead from rows to one vector.
  for (const char* name : {"embeddings.position_ids", "text_projection.weight",
                           "visual_projection.weight", "logit_scale", "head"})
    binder.ignore(names.prefix + name);
  binder.ignore_without(names.prefix);
  CheckpointPart held(file);
  for (const TensorSpec& tensor : tensors)
    held.take(binder, tensor, names(tensor.name), encoder_part(config, tensor, width));
  binder.finish();
  return held;
}

}  // namespace weft
