#include "models/clip_towers/tower.h"

namespace weft {

EncoderBlocksConfig clip_blocks_from_json_file(const std::string& path) {
  return EncoderBlocksConfig::from_json_file(path, kClipBlockNames, EncoderActivation::kQuickGelu);
}

ClipExtents::ClipExtents(const TensorFile& tensors, const ClipNames& spelled)
    : file(tensors),
      names(spelled),
      where(tensors.files().empty() ? "the file" : tensors.files().front()) {}

int64_t ClipExtents::operator()(const std::string& name, int dim) const {
  constexpr int64_t kWidest = 1 << 18;
  const std::string spelled = names(name).name;
  const TensorView view = file.contains(spelled) ? file.describe(spelled) : TensorView();
  const int at = dim < 0 ? view.rank + dim : dim;
  if (at < 0 || at >= view.rank || view[at] < 1 || view[at] > kWidest)
    throw Error(ErrorKind::kModel, where + ": no config.json, and " + spelled +
                                       ", from which sizes would follow, is missing or misshapen");
  return view[at];
}

EncoderBlocksConfig ClipExtents::blocks(int64_t head_dim, const std::string& what) const {
  EncoderBlocksConfig config;
  config.width = (*this)(kClipPositions, -1);
  config.ffn = (*this)(kClipFirstLayer, 0);
  config.names = kClipBlockNames;
  if (config.width % head_dim)
    throw Error(ErrorKind::kModel, where + ": no config.json, and a width of " +
                                       std::to_string(config.width) + " is not that of " + what +
                                       " (legal without one: multiples of " +
                                       std::to_string(head_dim) + ")");
  config.heads = config.width / head_dim;
  const auto has = [&](int64_t layer) {
    return file.contains(names("encoder.layers." + std::to_string(layer) + ".mlp.fc1.weight").name);
  };
  while (config.layers < 1024 && has(config.layers)) ++config.layers;
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
  for (const TensorSpec& tensor : tensors) {
    const TensorPlace place = names(tensor.name);
    const std::vector<int64_t> shape = names.shape(tensor);
    if (place.part == 0) binder.take(place.name, shape);
    TensorPart part = encoder_part(config, tensor, width);
    if (place.parts > 1) {
      part.range.begin += place.part * tensor.shape[0];
      part.range.end += place.part * tensor.shape[0];
    } else if (shape.size() > tensor.shape.size()) {
      part = {.dim = 0, .range = {0, 1}};
    }
    held.add(tensor.name, place.name, part);
  }
  binder.finish();
  return held;
}

}  // namespace weft
