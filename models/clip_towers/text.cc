#include "models/clip_towers/text.h"

#include <algorithm>

#include "models/config_reader.h"

namespace weft {

namespace {

class ClipTextModel final : public TextEncoderModel {
 public:
  explicit ClipTextModel(const ClipTextConfig& config)
      : TextEncoderModel(
            {{.columns = config.blocks.width,
              .heads = config.blocks.heads,
              .ffn_columns = config.blocks.ffn},
             [config](std::span<const int32_t> ids) { return clip_pooled_row(config, ids); }}),
        config_(config) {}

  std::vector<TensorSpec> tensors() const override { return clip_text_tensors(config_); }
  std::vector<TensorPlace> spellings(const std::string& name) const override {
    std::vector<TensorPlace> places;
    for (const char* prefix : kClipTextPrefixes) places.push_back({.name = prefix + name});
    return places;
  }
  std::unique_ptr<TextEncoder> load(Stream& stream, const TensorFile& file,
                                    const EncoderLoad& load) const override {
    return std::make_unique<ClipText>(ClipText::load(file, config_, stream, load));
  }

 private:
  ClipTextConfig config_;
};

}  // namespace

ClipTextConfig ClipTextConfig::from_json_file(const std::string& path) {
  ConfigReader fields(path);
  ClipTextConfig config{.blocks = read_clip_blocks(fields)};
  fields.required("vocab_size", config.vocab_size, IntRange{1, 1 << 24});
  fields.optional("max_position_embeddings", config.positions, IntRange{1, 1 << 20});
  fields.optional("eos_token_id", config.end_id, IntRange{0, 1 << 24});
  fields.finish("the configuration of a CLIP text tower", OtherKeys::kIgnored);
  return config;
}

bool holds_clip_text(const TensorNames& names) { return find_clip_text_names(names).has_value(); }

ClipTextConfig ClipTextConfig::from_tensors(const TensorFile& file) {
  constexpr int64_t kHeadDim = 64;  // of all published text towers
  const ClipNames names = find_clip_text_names(file).value_or(ClipNames());
  const TensorSizes sizes = clip_sizes(file, names);
  ClipTextConfig config;
  config.blocks = clip_blocks_from_tensors(sizes, kHeadDim, "a CLIP text tower");
  config.blocks.activation = EncoderActivation::kQuickGelu;
  config.vocab_size = sizes.extent(kClipTokens, 0);
  config.positions = sizes.extent(kClipPositions, 0);
  // The end of a text is the last token of the vocabulary.
  config.end_id = config.vocab_size - 1;
  return config;
}

std::string to_string(const ClipTextConfig& config) {
  return text_of("CLIP text tower: vocabulary ", config.vocab_size, ", ", config.positions,
                 " positions, width ", config.blocks.width, ", ", config.blocks.layers, " layers");
}

std::vector<TensorSpec> clip_text_tensors(const ClipTextConfig& config) {
  const int64_t d = config.blocks.width;
  std::vector<TensorSpec> tensors{{kClipPositions, {config.positions, d}},
                                  {kClipTokens, {config.vocab_size, d}}};
  add_encoder_blocks(config.blocks, tensors);
  add_norm(config.blocks.width, "final_layer_norm", tensors);
  return tensors;
}

int64_t clip_pooled_row(const ClipTextConfig& config, std::span<const int32_t> ids) {
  constexpr int64_t kPublishedByMistake = 2;
  if (config.end_id == kPublishedByMistake)
    return ids.empty() ? 0 : std::ranges::max_element(ids) - ids.begin();
  const auto end = std::ranges::find(ids, config.end_id);
  return end == ids.end() ? 0 : end - ids.begin();
}

ClipText ClipText::load(const TensorFile& file, const ClipTextConfig& config, Stream& stream,
                        const EncoderLoad& load) {
  const ClipNames names = find_clip_text_names(file).value_or(ClipNames());
  const CheckpointPart held =
      clip_tensors_of(file, config.blocks, clip_text_tensors(config), names, load.width);
  ClipText encoder;
  encoder.config_ = config;
  encoder.embedding_ = {&file, names(kClipTokens).name};
  encoder.positions_ = held.table(stream, kClipPositions);
  encoder.blocks_ = EncoderBlocks::load(stream, held, config.blocks, config.blocks.layers, load);
  encoder.final_norm_ = NormWeights::load(stream, held, "final_layer_norm");
  return encoder;
}

void ClipText::encode(Context& context, std::span<const int32_t> ids, const TensorView& out) const {
  const auto n = static_cast<int64_t>(ids.size());
  const int64_t d = config_.blocks.width;
  CHECK(out.rank == 2 && out[0] == n && out[1] == d && out.dtype == DType::kF32,
        out.to_string_shape(), "ids", n);
  if (n == 0) return;
  if (n > config_.positions)
    refuse_model("text encoder", "a prompt of ", n, " ids (legal: at most ", config_.positions,
                 ", its max_position_embeddings)");
  check_ids(ids, config_.vocab_size);
  const Arena::Scope scope(context.arena);
  const TensorView x = context.arena.alloc(DType::kF32, {n, d});
  read_rows(context.stream, embedding_, ids, x);
  add(context.stream, x, positions_.view().slice(0, 0, n), x);
  blocks_.run(context, Mask::kCausal, "text_encoder.block", x);
  layer_norm(context.stream, x, final_norm_.weight, final_norm_.bias, config_.blocks.eps, out);
}

size_t ClipText::bytes() const {
  return blocks_.bytes() + bytes_of(positions_) + bytes_of(final_norm_.weights());
}

std::unique_ptr<TextEncoderModel> make_clip_text_model(const ClipTextConfig& config) {
  return std::make_unique<ClipTextModel>(config);
}

}  // namespace weft
