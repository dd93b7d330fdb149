#include "models/z_image/family.h"

#include "models/files/tokenizer_files.h"

namespace weft {

namespace {

// The published settings of Z-Image-Turbo. The scheduler's config holds the shift.
DefaultSettings z_image_defaults(const ModelDirectory& model) {
  DefaultSettings out;
  out.name = folder_name(model.path);
  out.origin = "built-in";
  out.width = out.height = 1024;
  out.frames = 1;
  out.steps = 8;
  out.guidance_scale = 0;
  return out;
}

// The ids of a prompt in the chat form that the text encoder was trained on.
class ZImagePrompts final : public PromptTokenizer {
 public:
  explicit ZImagePrompts(const std::string& folder) : tokenizer_(open_byte_bpe(folder)) {}

  int64_t max_ids() const override { return kMaxIds; }
  int64_t padded_rows(int64_t ids) const override { return ids; }
  PromptTokens read(const std::string& prompt) const override {
    PromptTokens out{tokenizer_.encode(std::string(kBefore) + prompt + std::string(kAfter)), {}};
    const auto count = static_cast<int64_t>(out.ids.size());
    if (count <= kMaxIds) return out;
    std::string lost = tokenizer_.decode({out.ids.begin() + kMaxIds, out.ids.end()});
    if (lost.ends_with(kAfter)) lost.resize(lost.size() - kAfter.size());
    out.cut = PromptCut{count, kMaxIds, lost};
    out.ids.resize(kMaxIds);
    return out;
  }

 private:
  static constexpr int64_t kMaxIds = 512;
  static constexpr std::string_view kBefore = "<|im_start|>user\n",
                                    kAfter = "<|im_end|>\n<|im_start|>assistant\n";

  ByteBpeTokenizer tokenizer_;
};

}  // namespace

const ModelFamily kZImageFamily{
    .class_name = "ZImagePipeline",
    .guidance = GuidanceForm::kFromPositive,
    .even_sigmas = true,
    .velocity_sign = -1,
    .text = {"text_encoder", "tokenizer", TokenizerKind::kByteBpe},
    .tokenizer = [](const ModelDirectory& model) -> std::unique_ptr<PromptTokenizer> {
      return std::make_unique<ZImagePrompts>(model.tokenizer);
    },
    .defaults = z_image_defaults,
    .transformer_class = "ZImageTransformer2DModel",
    .text_encoder_class = "Qwen3Model",
    .vae_class = "AutoencoderKL",
    .pipeline = [](const ModelDirectory&) -> PipelineFacts {
      return {.scheduler = R"({"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0})"};
    },
};

}  // namespace weft
