#pragma once
// Registry: what a model directory in the diffusers layout holds, read from its JSON files alone.
#include <optional>
#include <string>

#include "models/wan.h"

namespace weft {

// What a model is run with where the user says nothing.
struct DefaultSettings {
  std::string name;    // "wan2.1-t2v-1.3b", "pocket", ...
  std::string origin;  // "weft.json" or "built-in"
  std::string negative_prompt;
  int64_t width = 832, height = 480, frames = 81;
  double fps = 16;
  int steps = 50;
  double guidance_scale = 5;               // of the high-noise expert where there are two
  std::optional<double> guidance_scale_2;  // of the low-noise expert
  std::optional<double> flow_shift;        // unset: scheduler_config.json
};

// Component folders are full paths, empty where the pipeline has none.
struct ModelDirectory {
  std::string path;
  std::string class_name;  // "WanPipeline"
  std::string transformer, transformer_2, text_encoder, tokenizer, scheduler, vae;
  std::optional<double> boundary_ratio;
  bool expand_timesteps = false;
  WanConfig config;    // of `transformer`
  WanConfig config_2;  // of `transformer_2`, where there is one
  DefaultSettings defaults;

  // Two experts run only where the second is there, whatever boundary_ratio says.
  int experts() const { return transformer_2.empty() ? 1 : 2; }
  const std::string& expert_path(int model) const { return model ? transformer_2 : transformer; }
  const WanConfig& expert_config(int model) const { return model ? config_2 : config; }
};

// Error(kModel) that names the file where a part is missing or not supported yet.
ModelDirectory open_model_directory(const std::string& path);

// The settings of `dir/weft.json`, else the published ones of the model this configuration belongs
// to.
DefaultSettings default_settings(const std::string& path, const WanConfig& config, int experts);

}  // namespace weft
