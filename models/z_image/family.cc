#include <nlohmann/json.hpp>

#include "io/json.h"
#include "models/files/chat_prompts.h"
#include "models/registry.h"

namespace weft {

namespace {

// Z-Image and Z-Image-Turbo have the same sizes. The shift of their schedulers, which the folder
// states, tells them apart.
bool is_base(const ModelDirectory& model) {
  constexpr double kShiftOfBase = 6;
  if (model.scheduler.empty()) return false;
  const std::string path = model.scheduler + "/scheduler_config.json";
  return json_number_or(read_json_file(path), "shift", path, 0) == kShiftOfBase;
}

// The published settings of Z-Image-Turbo and of Z-Image.
DefaultSettings z_image_defaults(const ModelDirectory& model) {
  DefaultSettings out;
  out.name = folder_name(model.path);
  out.origin = "built-in";
  out.width = out.height = 1024;
  out.frames = 1;
  out.steps = is_base(model) ? 50 : 8;
  out.guidance_scale = is_base(model) ? 4 : 0;
  return out;
}

constexpr ChatForm kZImageChat{"<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n", 512};

constexpr KnownModel kZImageModels[] = {{"Z-Image", 3840, 30, false, "Apache-2.0"}};

}  // namespace

const ModelFamily kZImageFamily{
    .class_name = "ZImagePipeline",
    .guidance = GuidanceForm::kFromPositive,
    .even_sigmas = true,
    .velocity_sign = -1,
    .text = {"text_encoder", "tokenizer", TokenizerKind::kByteBpe},
    .tokenizer = [](const ModelDirectory& m) { return chat_prompts(m.tokenizer, kZImageChat); },
    .defaults = z_image_defaults,
    .known = kZImageModels,
    .transformer_class = "ZImageTransformer2DModel",
    .text_encoder_class = "Qwen3Model",
    .vae_class = "AutoencoderKL",
    .pipeline = [](const ModelDirectory&) -> PipelineFacts {
      return {.scheduler = R"({"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0})"};
    },
};

}  // namespace weft
