#include "models/clip_towers/vision.h"

#include "models/config_reader.h"

namespace weft {

namespace {

constexpr int64_t kColours = 3;

class ClipVisionModel final : public ImageEncoderModel {
 public:
  explicit ClipVisionModel(const ClipVisionConfig& config)
      : ImageEncoderModel({{.columns = config.blocks.width,
                            .heads = config.blocks.heads,
                            .ffn_columns = config.blocks.ffn},
                           config.image_size,
                           config.rows()}),
        config_(config) {}

  std::vector<TensorSpec> tensors() const override { return clip_vision_tensors(config_); }
  std::unique_ptr<ImageEncoder> load(Stream& stream, const TensorFile& file,
                                     const EncoderLoad& load) const override {
    return std::make_unique<ClipVision>(ClipVision::load(file, config_, stream, load));
  }

 private:
  ClipVisionConfig config_;
};

}  // namespace

ClipVisionConfig ClipVisionConfig::from_json_file(const std::string& path) {
  ConfigReader fields(path);
  ClipVisionConfig config{.blocks = read_clip_blocks(fields)};
  fields.required("image_size", config.image_size, IntRange{1, 1 << 14});
  fields.required("patch_size", config.patch_size, IntRange{1, 1 << 10});
  fields.divides("patch_size", "image_size");
  fields.only("num_channels", {kColours});
  fields.finish("the configuration of a CLIP vision tower", OtherKeys::kIgnored);
  return config;
}

bool holds_clip_vision(const TensorNames& names) {
  return find_clip_vision_names(names).has_value();
}

ClipVisionConfig ClipVisionConfig::from_tensors(const TensorFile& file) {
  constexpr int64_t kHeadDim = 80;  // of a ViT-H
  const ClipNames names = find_clip_vision_names(file).value_or(ClipNames());
  const TensorSizes sizes = clip_sizes(file, names);
  ClipVisionConfig config;
  config.blocks = clip_blocks_from_tensors(sizes, kHeadDim, "a ViT-H");
  config.blocks.activation = EncoderActivation::kGelu;
  config.patch_size = sizes.extent(kClipPatches, -1);
  const int64_t patches = sizes.extent(kClipPositions, -2) - 1;
  int64_t side = 1;
  while (side * side < patches) ++side;
  if (side * side != patches)
    sizes.refuse(patches, " patches are not those of a ViT-H (legal without one: a square)");
  config.image_size = side * config.patch_size;
  return config;
}

std::string to_string(const ClipVisionConfig& config) {
  return text_of("CLIP vision tower: ", config.image_size, " pixels, patch ", config.patch_size,
                 ", width ", config.blocks.width, ", ", config.blocks.layers, " layers");
}

std::vector<TensorSpec> clip_vision_tensors(const ClipVisionConfig& config) {
  const int64_t d = config.blocks.width, p = config.patch_size;
  std::vector<TensorSpec> tensors{
      {kClipPositions, {config.rows(), d}}, {kClipClass, {d}}, {kClipPatches, {d, kColours, p, p}}};
  add_norm(config.blocks.width, "pre_layrnorm", tensors);  // spelled so
  add_encoder_blocks(config.blocks, tensors);
  add_norm(config.blocks.width, "post_layernorm", tensors);
  return tensors;
}

ClipVision ClipVision::load(const TensorFile& file, const ClipVisionConfig& config, Stream& stream,
                            const EncoderLoad& load) {
  const ClipNames names = find_clip_vision_names(file).value_or(ClipNames());
  const CheckpointPart held =
      clip_tensors_of(file, config.blocks, clip_vision_tensors(config), names, load.width);
  ClipVision encoder;
  encoder.config_ = config;
  encoder.patch_embedding_ = held.linear(stream, "embeddings.patch_embedding", DType::kF32);
  encoder.class_embedding_ = held.vector(stream, kClipClass);
  encoder.positions_ = held.table(stream, kClipPositions);
  encoder.pre_norm_ = NormWeights::load(stream, held, "pre_layrnorm");
  encoder.blocks_ =
      EncoderBlocks::load(stream, held, config.blocks, config.blocks.layers - 1, load);
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
