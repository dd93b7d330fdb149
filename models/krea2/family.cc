#include <nlohmann/json.hpp>

#include "io/json.h"
#include "models/files/chat_prompts.h"
#include "models/files/tokenizer_files.h"
#include "models/registry.h"

namespace weft {

namespace {

constexpr int kUsualTaps[] = {2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 32, 35};
constexpr double kTurboShift = 1.15;

// Reads which layers of the text encoder make a prompt's rows.
void read_krea2_index(const std::string& path, ModelDirectory& model) {
  constexpr const char* kLayers = "text_encoder_select_layers";
  constexpr const char* kPatchSize = "patch_size";
  constexpr int kPatch = 2;  // of every transformer
  const nlohmann::json index = read_json_file(path);
  if (json_has(index, kLayers)) {
    const std::vector<int64_t> layers = json_ints(index, kLayers, path, {0, 1 << 10});
    if (layers.empty())
      throw Error(ErrorKind::kModel, path + ": " + kLayers + " is empty, legal: 1 layer or more");
    model.text_taps.assign(layers.begin(), layers.end());
  }
  if (json_has(index, kPatchSize)) json_int(index, kPatchSize, path, {kPatch, kPatch});
}

// The published settings.
DefaultSettings krea2_settings(const ModelDirectory& model, int steps, double guidance) {
  DefaultSettings out;
  out.name = folder_name(model.path);
  out.origin = "built-in";
  out.width = out.height = 1024;
  out.frames = 1;
  out.steps = steps;
  out.guidance_scale = guidance;
  return out;
}

// The model was trained on rows of a fixed length: the system's turn, which it does not read, the
// prompt with padding, which no row sees, and the answer's beginning. Of those the rows without the
// padding are as many as a prompt needs.
std::unique_ptr<PromptTokenizer> krea2_prompts(const ModelDirectory& model) {
  constexpr int64_t kAnswerIds = 5;  // of the published tokenizer
  ChatForm form = kPictureChat;
  form.most_ids = tokenizer_model_max_length(model.tokenizer + "/tokenizer_config.json") +
                  form.unread_ids - kAnswerIds;
  form.keeps_after = true;
  return chat_prompts(model.tokenizer, form);
}

PipelineFacts krea2_pipeline(const ModelDirectory& /*model*/) {
  return {.scheduler = R"({"_class_name": "FlowMatchEulerDiscreteScheduler",
                           "use_dynamic_shifting": true, "time_shift_type": "exponential",
                           "base_shift": 0.5, "max_shift": 1.15, "base_image_seq_len": 256,
                           "max_image_seq_len": 6400})"};
}

constexpr KnownModel kKrea2Models[] = {
    {"Krea 2", 6144, 28, false, "Krea 2 Community License",
     "conditions for commercial use, see krea.ai/krea-2-licensing"}};

// Returns what the raw model and the distilled one share.
constexpr ModelFamily krea2_family(bool distilled) {
  return {.class_name = "Krea2Pipeline",
          .guidance = GuidanceForm::kBeyondPositive,
          .even_sigmas = true,
          .text = {"text_encoder", "tokenizer", TokenizerKind::kByteBpe},
          .text_taps = kUsualTaps,
          .distilled = distilled,
          .tokenizer = krea2_prompts,
          .read_index = read_krea2_index,
          .known = kKrea2Models};
}

}  // namespace

const ModelFamily kKrea2Family = [] {
  ModelFamily family = krea2_family(false);
  family.defaults = [](const ModelDirectory& model) { return krea2_settings(model, 28, 4.5); };
  return family;
}();

// Tensors do not tell the distilled model from the raw one: single files count as distilled.
const ModelFamily kKrea2TurboFamily = [] {
  ModelFamily family = krea2_family(true);
  family.shift_exponent = [](int64_t, int) { return kTurboShift; };
  family.defaults = [](const ModelDirectory& model) { return krea2_settings(model, 8, 0); };
  family.transformer_class = "Krea2Transformer2DModel";
  family.text_encoder_class = "Qwen3VLModel";
  family.vae_class = "AutoencoderKLQwenImage";
  family.pipeline = krea2_pipeline;
  return family;
}();

}  // namespace weft
