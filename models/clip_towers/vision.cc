#include "models/clip_towers/vision.h"

#include <nlohmann/json.hpp>

#include "io/json.h"
#include "models/config_check.h"

namespace weft {

namespace {

constexpr const char* kPositions = "embeddings.position_embedding.weight";
constexpr const char kPrefix[] = "vision_model.";
constexpr int64_t kColours = 3;

class ClipVisionModel final : public ImageEncoderModel {
 public:
  explicit ClipVisionModel(const ClipVisionConfig& config)
      : ImageEncoderModel({.size = config.image_size,
                           .rows = config.rows(),
                           .columns = config.blocks.width,
                           .heads = config.blocks.heads,
                           .ffn_columns = config.blocks.ffn}),
        config_(config) {}

  std::vector<TensorSpec> tensors() const override { return clip_vision_tensors(config_); }
  std::unique_ptr<ImageEncoder> load(Stream& stream, const TensorFile& file, DType dtype,
                                     const WidthSlice& width) const override {
    return std::make_unique<ClipVision>(ClipVision::load(file, config_, stream, dtype, width));
  }

 private:
  ClipVisionConfig config_;
};

}  // namespace

ClipVisionConfig ClipVisionConfig::from_json_file(const std::string& path) {
  const nlohmann::json json = read_config(path);
  ClipVisionConfig config;
  config.blocks = clip_blocks_from_json_file(path);
  config.image_size = json_int(json, "image_size", path, {1, 1 << 14});
  config.patch_size = json_int(json, "patch_size", path, {1, 1 << 10});
  if (config.image_size % config.patch_size)
    throw Error(ErrorKind::kModel, path + ": patch_size is " + std::to_string(config.patch_size) +
                                       ", legal: a divisor of image_size, " +
                                       std::to_string(config.image_size));
  const int64_t colours = json_int_or(json, "num_channels", path, kColours, {1, 1 << 10});
  if (colours != kColours)
    throw Error(ErrorKind::kModel,
                path + ": num_channels is " + std::to_string(colours) + ", legal: 3");
  return config;
}

bool holds_clip_vision(const TensorFile& file) {
  return file.contains(kPrefix + std::string(kPositions)) ||
         (file.contains(kPositions) && file.contains("pre_layrnorm.weight"));
}

ClipVisionConfig ClipVisionConfig::from_tensors(const TensorFile& file) {
  constexpr int64_t kHeadDim = 80, kWidest = 1 << 16;  // heads of 80 are those of ViT-H
  const std::string where = file.files().empty() ? "the file" : file.files().front();
  const std::string prefix = file.contains(kPositions) ? "" : kPrefix;
  const auto extent = [&](const std::string& name, int dim) {
    const std::string spelled = prefix + name;
    const TensorView view = file.contains(spelled) ? file.describe(spelled) : TensorView();
    if (view.rank <= dim || view[dim] < 1 || view[dim] > kWidest)
      throw Error(ErrorKind::kModel, where + ": no config.json, and " + spelled +
                                         ", from which sizes would follow, is missing or "
                                         "misshapen");
    return view[dim];
  };
  ClipVisionConfig config;
  config.blocks.width = extent(kPositions, 1);
  config.blocks.ffn = extent("encoder.layers.0.mlp.fc1.weight", 0);
  config.blocks.activation = EncoderActivation::kGelu;
  config.blocks.names = kClipBlockNames;
  config.patch_size = extent("embeddings.patch_embedding.weight", 3);
  const int64_t patches = extent(kPositions, 0) - 1;
  int64_t side = 1;
  while (side * side < patches) ++side;
  if (config.blocks.width % kHeadDim || side * side != patches)
    throw Error(ErrorKind::kModel, where + ": no config.json, and a width of " +
                                       std::to_string(config.blocks.width) + " with " +
                                       std::to_string(patches) +
                                       " patches is not that of a ViT-H (legal without one: "
                                       "multiples of 80, and a square)");
  config.blocks.heads = config.blocks.width / kHeadDim;
  config.image_size = side * config.patch_size;
  config.blocks.layers = 0;
  while (config.blocks.layers < 1024 &&
         file.contains(prefix + "encoder.layers." + std::to_string(config.blocks.layers) +
                       ".mlp.fc1.weight"))
    ++config.blocks.layers;
  return config;
}

std::string to_string(const ClipVisionConfig& config) {
  return "CLIP vision tower: " + std::to_string(config.image_size) + " pixels, patch " +
         std::to_string(config.patch_size) + ", width " + std::to_string(config.blocks.width) +
         ", " + std::to_string(config.blocks.layers) + " layers";
}

std::vector<TensorSpec> clip_vision_tensors(const ClipVisionConfig& config) {
  const int64_t d = config.blocks.width, p = config.patch_size;
  std::vector<TensorSpec> tensors{{kPositions, {config.rows(), d}},
                                  {"embeddings.class_embedding", {d}},
                                  {"embeddings.patch_embedding.weight", {d, kColours, p, p}}};
  add_norm(config.blocks.width, "pre_layrnorm", tensors);  // spelled so
  add_encoder_blocks(config.blocks, tensors);
  add_norm(config.blocks.width, "post_layernorm", tensors);
  return tensors;
}

ClipVision ClipVision::load(const TensorFile& file, const ClipVisionConfig& config, Stream& stream,
                            DType dtype, const WidthSlice& width) {
  const CheckpointPart held =
      clip_tensors_of(file, config.blocks, clip_vision_tensors(config), kPrefix, width);
  ClipVision encoder;
  encoder.config_ = config;
  encoder.patch_embedding_ = held.linear(stream, "embeddings.patch_embedding", DType::kF32);
  encoder.class_embedding_ = held.vector(stream, "embeddings.class_embedding");
  encoder.positions_ = held.table(stream, kPositions);
  encoder.pre_norm_ = NormWeights::load(stream, held, "pre_layrnorm");
  encoder.blocks_ =
      EncoderBlocks::load(stream, held, config.blocks, config.blocks.layers - 1, dtype, width);
  return encoder;
}

void ClipVision::encode(Context& context, const TensorView& pixels, const TensorView& out) const {
  const int64_t size = config_.image_size, p = config_.patch_size, d = config_.blocks.width;
  CHECK(pixels.rank == 3 && pixels[0] == kColours && pixels[1] == size && pixels[2] == size &&
            pixels.dtype == DType::kF32,
        pixels.to_string_shape(), "for pictures of", size);
  CHECK(out.rank == 2 && out[0] == config_.rows() && out[1] == d && out.dtype == DType::kF32,
        out.to_string_shape());
  Stream& stream = context.stream;
  {
    const Arena::Scope scope(context.arena);
    const int64_t n = config_.patches();
    const TensorView rows = context.arena.alloc(DType::kF32, {n, kColours * p * p});
    patchify(stream, pixels.reshape({kColours, 1, size, size}), {1, p, p}, TokenRanges::all(n),
             rows);
    linear(stream, rows, patch_embedding_, LinearActivation::kNone, out.slice(0, 1, n));
  }
  copy(stream, class_embedding_, out.select(0, 0));
  add(stream, out, positions_, out);
  layer_norm(stream, out, pre_norm_.weight, pre_norm_.bias, config_.blocks.eps, out);
  blocks_.run(context, Mask::kFull, "image_encoder.block", out);
}

size_t ClipVision::bytes() const {
  return blocks_.bytes() +
         bytes_of(std::tuple_cat(pre_norm_.weights(),
                                 std::tie(patch_embedding_, class_embedding_, positions_)));
}

std::unique_ptr<ImageEncoderModel> make_clip_vision_model(const ClipVisionConfig& config) {
  return std::make_unique<ClipVisionModel>(config);
}

}  // namespace weft
