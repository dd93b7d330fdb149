#include "models/qwen_image/family.h"

#include "models/files/tokenizer_files.h"

namespace weft {

namespace {

// The published settings. The scheduler's config holds the shift, which follows the size.
DefaultSettings qwen_image_defaults(const ModelDirectory& model) {
  DefaultSettings out;
  out.name = folder_name(model.path);
  out.origin = "built-in";
  out.width = out.height = 1328;
  out.frames = 1;
  out.steps = 50;
  out.guidance_scale = 4;
  out.negative_prompt = " ";
  return out;
}

// The ids of a prompt in the chat form that the text encoder was trained on. The transformer reads
// the rows behind the system's turn, which has 34 ids of the published tokenizer.
class QwenImagePrompts final : public PromptTokenizer {
 public:
  explicit QwenImagePrompts(const std::string& folder)
      : folder_(folder), tokenizer_(open_byte_bpe(folder)) {}

  int64_t max_ids() const override { return kUnread + kMaxRows; }
  int64_t unread_ids() const override { return kUnread; }
  int64_t padded_rows(int64_t rows) const override { return rows; }
  PromptTokens read(const std::string& prompt) const override {
    PromptTokens out{tokenizer_.encode(std::string(kBefore) + prompt + std::string(kAfter)), {}};
    const auto count = static_cast<int64_t>(out.ids.size());
    if (count <= kUnread)
      throw Error(ErrorKind::kModel, folder_ + ": a prompt has " + std::to_string(count) +
                                         " ids with its template, and the model needs more than " +
                                         std::to_string(kUnread) +
                                         "; the tokenizer belongs to another model");
    if (count <= max_ids()) return out;
    std::string lost = tokenizer_.decode({out.ids.begin() + max_ids(), out.ids.end()});
    if (lost.ends_with(kAfter)) lost.resize(lost.size() - kAfter.size());
    out.cut = PromptCut{count, max_ids(), lost};
    out.ids.resize(max_ids());
    return out;
  }

 private:
  static constexpr int64_t kUnread = 34, kMaxRows = 1024;
  static constexpr std::string_view
      kBefore =
          "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, "
          "quantity, text, spatial relationships of the objects and background:<|im_end|>\n"
          "<|im_start|>user\n",
      kAfter = "<|im_end|>\n<|im_start|>assistant\n";

  std::string folder_;
  ByteBpeTokenizer tokenizer_;
};

}  // namespace

const ModelFamily kQwenImageFamily{
    .class_name = "QwenImagePipeline",
    .guidance = GuidanceForm::kRescaled,
    .even_sigmas = true,
    .text = {"text_encoder", "tokenizer", TokenizerKind::kByteBpe},
    .tokenizer = [](const ModelDirectory& model) -> std::unique_ptr<PromptTokenizer> {
      return std::make_unique<QwenImagePrompts>(model.tokenizer);
    },
    .defaults = qwen_image_defaults,
    .transformer_class = "QwenImageTransformer2DModel",
    .text_encoder_class = "Qwen2_5_VLForConditionalGeneration",
    .vae_class = "AutoencoderKLQwenImage",
    .pipeline = [](const ModelDirectory&) -> PipelineFacts {
      return {.scheduler = R"({"_class_name": "FlowMatchEulerDiscreteScheduler",
                               "use_dynamic_shifting": true, "time_shift_type": "exponential",
                               "base_shift": 0.5, "max_shift": 0.9, "base_image_seq_len": 256,
                               "max_image_seq_len": 8192, "shift_terminal": 0.02})"};
    },
};

}  // namespace weft
