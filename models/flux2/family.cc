#include <cmath>
#include <nlohmann/json.hpp>

#include "models/files/chat_prompts.h"
#include "models/files/tokenizer_files.h"
#include "models/registry.h"

namespace weft {

namespace {

constexpr int kTextTaps[] = {9, 18, 27};

// The published settings of klein, which was distilled to few steps without guidance, and of its
// base.
DefaultSettings klein_settings(const ModelDirectory& model, int steps, double guidance) {
  DefaultSettings out;
  out.name = folder_name(model.path);
  out.origin = "built-in";
  out.width = out.height = 1024;
  out.frames = 1;
  out.steps = steps;
  out.guidance_scale = guidance;
  return out;
}

// The exponent of the shift: a line through its values for 10 and for 200 steps, both of which grow
// evenly with the tokens. Pictures of more than 4300 tokens have that for 200.
double klein_shift(int64_t tokens, int steps) {
  const auto n = static_cast<double>(tokens);
  const double at_10 = 8.73809524e-5 * n + 1.89833333, at_200 = 1.6927e-4 * n + 0.45666666;
  if (tokens > 4300) return at_200;
  const double slope = (at_200 - at_10) / 190;
  return slope * steps + at_200 - 200 * slope;
}

// The chat template of Qwen3 without thinking. The transformer reads the rows of the padding, too.
std::unique_ptr<PromptTokenizer> klein_prompts(const ModelDirectory& model) {
  return chat_prompts(
      model.tokenizer,
      {.before = "<|im_start|>user\n",
       .after = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
       .most_ids = tokenizer_model_max_length(model.tokenizer + "/tokenizer_config.json"),
       .padding = "<|endoftext|>"});
}

// References are cut, not stretched, to sides that are multiples of a token's; only those of more
// pixels than `area` are made smaller first.
ReferenceSize klein_reference(int64_t width, int64_t height, int64_t area, int64_t multiple) {
  ReferenceSize size{.resized = {width, height}};
  if (width * height > area) {
    const double scale = std::sqrt(static_cast<double>(area) / static_cast<double>(width * height));
    for (int64_t& side : size.resized)
      side = static_cast<int64_t>(static_cast<double>(side) * scale);
  }
  for (int side = 0; side < 2; ++side) size.cut[side] = size.resized[side] / multiple * multiple;
  return size;
}

PictureConditioning klein_pictures(const ModelDirectory& /*model*/) {
  return {.form = PictureForm::kReferences,
          .most = 100,
          .reference_size = klein_reference,
          .reference_area = 1024 * 1024,
          .least_side = 64,
          .most_aspect = 8};
}

PipelineFacts klein_pipeline(const ModelDirectory& /*model*/) {
  return {.scheduler = R"({"_class_name": "FlowMatchEulerDiscreteScheduler",
                           "use_dynamic_shifting": true, "time_shift_type": "exponential"})"};
}

constexpr const char kFluxLicence[] = "FLUX Non-Commercial License",
                     kNotCommercial[] = "not for commercial use";
constexpr KnownModel kKnown[] = {{"FLUX.2 klein 4B", 3072, 25, false, "Apache-2.0"},
                                 {"FLUX.2 klein 9B", 4096, 32, false, kFluxLicence, kNotCommercial},
                                 {"FLUX.2 dev", 6144, 56, true, kFluxLicence, kNotCommercial}};

// Returns what klein and its base share.
constexpr ModelFamily klein_family(bool distilled) {
  return {.class_name = "Flux2KleinPipeline",
          .even_sigmas = true,
          .text = {"text_encoder", "tokenizer", TokenizerKind::kByteBpe},
          .text_taps = kTextTaps,
          .distilled = distilled,
          .tokenizer = klein_prompts,
          .shift_exponent = klein_shift,
          .known = kKnown,
          .pictures = klein_pictures};
}

}  // namespace

// Tensors do not tell a distilled model from its base: single files count as distilled.
const ModelFamily kFlux2Family = [] {
  ModelFamily family = klein_family(true);
  family.guidance = GuidanceForm::kTold;
  family.defaults = [](const ModelDirectory& model) { return klein_settings(model, 4, 0); };
  family.transformer_class = "Flux2Transformer2DModel";
  family.text_encoder_class = "Qwen3Model";
  family.vae_class = "AutoencoderKLFlux2";
  family.pipeline = klein_pipeline;
  return family;
}();

const ModelFamily kFlux2BaseFamily = [] {
  ModelFamily family = klein_family(false);
  family.guidance = GuidanceForm::kFromNegative;
  family.defaults = [](const ModelDirectory& model) { return klein_settings(model, 50, 4); };
  return family;
}();

}  // namespace weft
