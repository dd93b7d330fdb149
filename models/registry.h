#pragma once
// Registry: the one table of model families. A row describes a pipeline by the `_class_name` of its
// model_index.json; other tables find the class of a component by that of its config.json.
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/text_encoder.h"
#include "models/transformer.h"
#include "models/vae.h"

namespace weft {

// The endless streams that a model was trained for.
struct StreamDefaults {
  std::string caption;  // a {mood} in it stands for one of `moods`
  std::vector<std::string> moods;
  int64_t block_frames = 0;   // latent frames of a block
  int64_t window_frames = 0;  // latent frames that a block sees, its own among them
  bool clean_pass = false;    // a block sees keys of finished blocks, not of the same step
};

// The settings that a model is run with unless the user says otherwise.
struct DefaultSettings {
  std::string name;    // the published model's, or that of weft.json
  std::string origin;  // "weft.json" or "built-in"
  std::string negative_prompt;
  int64_t width = 832, height = 480, frames = 81;
  std::optional<int64_t> trained_frames;  // the longest clips of its training; unset: frames
  double fps = 16;
  int steps = 50;
  double guidance_scale = 5;               // for the high-noise expert where there are two
  std::optional<double> guidance_scale_2;  // for the low-noise expert
  std::optional<double> flow_shift;        // unset: scheduler_config.json
  // The polynomial of TeaCache, highest power first (engine/generation/step_cache.h). Empty: none
  // is known.
  std::vector<double> teacache;
  std::optional<StreamDefaults> stream;  // unset: the model draws no streams
};

// Two velocities become one, with scale g: v_n + g (v_p - v_n), or v_p + g (v_p - v_n).
enum class GuidanceForm : uint8_t { kFromNegative, kFromPositive };

struct ModelDirectory;

// A row of the registry.
struct ModelFamily {
  const char* class_name;  // of model_index.json
  GuidanceForm guidance = GuidanceForm::kFromNegative;
  bool even_sigmas = false;  // the pipeline gives an Euler scheduler its sigmas (SamplerConfig)
  float velocity_sign = 1;   // the sampler steps along velocity_sign times the transformer's output
  std::unique_ptr<PromptTokenizer> (*tokenizer)(const std::string& folder) = nullptr;
  // The published settings of the model, for a folder without weft.json.
  DefaultSettings (*defaults)(const ModelDirectory& model) = nullptr;
};

// A model directory. Component folders are full paths; a component that is absent has an empty one.
struct ModelDirectory {
  std::string path;
  const ModelFamily* family = nullptr;
  std::string transformer, transformer_2, text_encoder, tokenizer, scheduler, vae;
  std::optional<double> boundary_ratio;
  std::vector<std::shared_ptr<const TransformerModel>> transformers;  // one per expert
  std::shared_ptr<const TextEncoderModel> text_model;
  std::shared_ptr<const VaeModel> vae_model;
  DefaultSettings defaults;

  // Two experts run only if transformer_2 exists, whatever boundary_ratio says.
  int experts() const { return transformer_2.empty() ? 1 : 2; }
  const std::string& expert_path(int model) const { return model ? transformer_2 : transformer; }
  const TransformerModel& expert(int model) const { return *transformers[model]; }
};

// Opens a model directory: reads its JSON files only. Throws Error(kModel) that names the file if a
// part is missing or not supported.
ModelDirectory open_model_directory(const std::string& path);

// Open one component by the class that its config.json names. Error(kModel) lists the classes that
// are legal.
std::shared_ptr<const TransformerModel> open_transformer(const std::string& config_path);
std::shared_ptr<const TextEncoderModel> open_text_encoder(const std::string& config_path);
std::shared_ptr<const VaeModel> open_vae(const std::string& config_path);
// The transformer of a single-file checkpoint without a config, by its tensors' names and shapes.
std::shared_ptr<const TransformerModel> open_transformer(const TensorFile& file);

// The component that a config.json describes. component_facts returns nullopt for one that is not
// known here.
struct ComponentFacts {
  std::string class_name;
  std::vector<TensorSpec> tensors;
  std::string description;  // the configuration in one line, or ""
};
std::optional<ComponentFacts> component_facts(const std::string& config_path);
std::string known_components();  // "WanTransformer3DModel, ..."

std::string folder_name(const std::string& path);  // the last name of a path

// Returns the settings of the folder's weft.json, or else the published ones of the family.
DefaultSettings default_settings(const ModelDirectory& model);

}  // namespace weft
