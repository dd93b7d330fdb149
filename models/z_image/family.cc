#include "models/files/chat_prompts.h"
#include "models/registry.h"

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

constexpr ChatForm kZImageChat{"<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n", 512};

}  // namespace

const ModelFamily kZImageFamily{
    .class_name = "ZImagePipeline",
    .guidance = GuidanceForm::kFromPositive,
    .even_sigmas = true,
    .velocity_sign = -1,
    .text = {"text_encoder", "tokenizer", TokenizerKind::kByteBpe},
    .tokenizer = [](const ModelDirectory& m) { return chat_prompts(m.tokenizer, kZImageChat); },
    .defaults = z_image_defaults,
    .transformer_class = "ZImageTransformer2DModel",
    .text_encoder_class = "Qwen3Model",
    .vae_class = "AutoencoderKL",
    .pipeline = [](const ModelDirectory&) -> PipelineFacts {
      return {.scheduler = R"({"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0})"};
    },
};

}  // namespace weft
