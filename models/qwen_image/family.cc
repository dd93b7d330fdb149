#include "models/files/chat_prompts.h"
#include "models/registry.h"

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

std::unique_ptr<PromptTokenizer> qwen_image_prompts(const ModelDirectory& model) {
  ChatForm form = kPictureChat;
  form.most_ids = form.unread_ids + 1024;
  return chat_prompts(model.tokenizer, form);
}

constexpr KnownModel kQwenImageModels[] = {{"Qwen-Image", 3072, 60, false, "Apache-2.0"}};

}  // namespace

const ModelFamily kQwenImageFamily{
    .class_name = "QwenImagePipeline",
    .guidance = GuidanceForm::kRescaled,
    .even_sigmas = true,
    .text = {"text_encoder", "tokenizer", TokenizerKind::kByteBpe},
    .tokenizer = qwen_image_prompts,
    .defaults = qwen_image_defaults,
    .known = kQwenImageModels,
    .only_model = "qwen-image",
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
