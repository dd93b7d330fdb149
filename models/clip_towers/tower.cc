#include "models/clip_towers/tower.h"

namespace weft {

EncoderBlocksConfig clip_blocks_from_json_file(const std::string& path) {
  return EncoderBlocksConfig::from_json_file(path, kClipBlockNames, EncoderActivation::kQuickGelu);
}

CheckpointPart clip_tensors_of(const TensorFile& file, const EncoderBlocksConfig& config,
                               const std::vector<TensorSpec>& tensors, const std::string& prefix,
                               const WidthSlice& width) {
  const bool prefixed = file.contains(prefix + tensors.front().name);
  const std::string before = prefixed ? prefix : "";
  WeightBinder binder(file, "encoder", [&](const std::string& name) { return before + name; });
  // Positions by number, which old files hold, and layers that lead from rows to one vector.
  for (const char* name : {"embeddings.position_ids", "text_projection.weight",
                           "visual_projection.weight", "logit_scale"})
    binder.ignore(before + name);
  binder.ignore_without(before);
  CheckpointPart held(file);
  for (const TensorSpec& tensor : tensors) {
    binder.take(tensor.name, tensor.shape);
    held.add(tensor.name, before + tensor.name, encoder_part(config, tensor, width));
  }
  binder.finish();
  return held;
}

}  // namespace weft
