#pragma once
// Registry: the parts and default settings of a model directory in the diffusers layout. It reads
// only JSON files.
#include <optional>
#include <string>

#include "models/wan/transformer.h"

namespace weft {

// The settings that a model is run with unless the user says otherwise.
struct DefaultSettings {
  std::string name;    // "wan2.1-t2v-1.3b", "pocket", ...
  std::string origin;  // "weft.json" or "built-in"
  std::string negative_prompt;
  int64_t width = 832, height = 480, frames = 81;
  double fps = 16;
  int steps = 50;
  double guidance_scale = 5;               // for the high-noise expert where there are two
  std::optional<double> guidance_scale_2;  // for the low-noise expert
  std::optional<double> flow_shift;        // unset: scheduler_config.json
};

// A model directory. Component folders are full paths; a component that is absent has an empty one.
struct ModelDirectory {
  std::string path;
  std::string class_name;  // "WanPipeline"
  std::string transformer, transformer_2, text_encoder, tokenizer, scheduler, vae;
  std::optional<double> boundary_ratio;
  bool expand_timesteps = false;
  WanConfig config;    // config of `transformer`
  WanConfig config_2;  // config of `transformer_2`, if there is one
  DefaultSettings defaults;

  // Two experts run only if transformer_2 exists, whatever boundary_ratio says.
  int experts() const { return transformer_2.empty() ? 1 : 2; }
  const std::string& expert_path(int model) const { return model ? transformer_2 : transformer; }
  const WanConfig& expert_config(int model) const { return model ? config_2 : config; }
};

// Opens a model directory. Throws Error(kModel) that names the file if a part is missing or not
// supported.
ModelDirectory open_model_directory(const std::string& path);

// Returns the settings of `path/weft.json`, or else the published ones of the model with this
// configuration.
DefaultSettings default_settings(const std::string& path, const WanConfig& config, int experts);

}  // namespace weft
