#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "models/files/tokenizer_files.h"
#include "models/registry.h"

namespace weft {

namespace {

// FLUX.1-dev is told the scale of the guidance that it was distilled from, FLUX.1-schnell none.
bool is_dev(const ModelDirectory& model) { return model.expert(0).traits().reads_guidance; }

// The published settings. The scheduler's config holds the shift.
DefaultSettings flux_defaults(const ModelDirectory& model) {
  const bool dev = is_dev(model);
  DefaultSettings out;
  out.name = folder_name(model.path);
  out.origin = "built-in";
  out.width = out.height = 1024;
  out.frames = 1;
  out.steps = dev ? 28 : 4;
  out.guidance_scale = dev ? 3.5 : 0;
  return out;
}

// The scheduler of the published folders.
PipelineFacts flux_pipeline(const ModelDirectory& model) {
  const bool dev = is_dev(model);
  return {.scheduler = nlohmann::json{
              {"_class_name", "FlowMatchEulerDiscreteScheduler"},
              {"base_image_seq_len", 256},
              {"base_shift", 0.5},
              {"max_image_seq_len", 4096},
              {"max_shift", 1.15},
              {"num_train_timesteps", 1000},
              {"shift", dev ? 3.0 : 1.0},
              {"use_dynamic_shifting",
               dev}}.dump()};
}

// T5's ids of a prompt, padded to the length that the transformer was trained with, whose rows it
// reads without a mask; and CLIP's ids of it.
class FluxPrompts final : public PromptTokenizer {
 public:
  explicit FluxPrompts(const ModelDirectory& model)
      : rows_(is_dev(model) ? 512 : 256),
        clip_ids_(std::clamp(
            tokenizer_model_max_length(model.pooled_tokenizer + "/tokenizer_config.json"), 2,
            kClipIds)),
        t5_(open_sentencepiece(model.tokenizer)),
        clip_(open_clip_tokenizer(model.pooled_tokenizer)) {}

  int64_t max_ids() const override { return rows_; }
  int64_t padded_rows(int64_t rows) const override { return rows; }
  PromptTokens read(const std::string& prompt) const override {
    constexpr int32_t kPadId = 0;
    PromptTokens out{t5_.encode(prompt, std::numeric_limits<int>::max()), {}};
    if (std::ssize(out.ids) > rows_) {
      out.cut = PromptCut{std::ssize(out.ids), rows_, t5_.text_behind(out.ids, rows_)};
      out.ids = t5_.encode(prompt, static_cast<int>(rows_));
    }
    out.ids.resize(rows_, kPadId);
    out.pooled_ids = clip_.encode(prompt, clip_ids_);
    return out;
  }

 private:
  static constexpr int kClipIds = 77;

  int64_t rows_;
  int clip_ids_;
  SentencePieceTokenizer t5_;
  ClipTokenizer clip_;
};

constexpr KnownModel kFluxModels[] = {
    {"FLUX.1 schnell", 3072, 57, false, "Apache-2.0"},
    {"FLUX.1 dev", 3072, 57, true, "FLUX.1 [dev] Non-Commercial License",
     "not for commercial use"}};

}  // namespace

const ModelFamily kFluxFamily{
    .class_name = "FluxPipeline",
    .guidance = GuidanceForm::kTold,
    .even_sigmas = true,
    .text = {"text_encoder_2", "tokenizer_2"},
    .pooled = {"text_encoder", "tokenizer", TokenizerKind::kClip},
    .tokenizer = [](const ModelDirectory& model) -> std::unique_ptr<PromptTokenizer> {
      return std::make_unique<FluxPrompts>(model);
    },
    .defaults = flux_defaults,
    .known = kFluxModels,
    .transformer_class = "FluxTransformer2DModel",
    .text_encoder_class = "T5EncoderModel",
    .pooled_encoder_class = "CLIPTextModel",
    .vae_class = "AutoencoderKL",
    .pipeline = flux_pipeline,
};

}  // namespace weft
