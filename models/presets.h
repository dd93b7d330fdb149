#pragma once
// Presets: the settings of models and LoRAs that were distilled to a few steps, by name, in one
// table.
#include <span>
#include <string>
#include <vector>

#include "models/lora/lora.h"

namespace weft {

struct ModelDirectory;

// A LoRA of a preset, by the name of its published file.
struct PresetLora {
  const char* file;
  LoraExpert expert = LoraExpert::kAll;
  double scale = 1;  // beside the alpha that the file states
};

struct Preset {
  const char* name;
  const char* models;      // published names, separated by spaces; null: any model
  const char* repository;  // of the LoRAs on Hugging Face; null: it needs none
  std::vector<PresetLora> loras;
  const char* solver;
  int steps;
  double guidance_scale, flow_shift;

  // The fields of a job that it stands for, as texts; "": the field may not be given beside it.
  struct Field {
    const char* name;
    std::string value;
  };
  std::vector<Field> fields() const;
};

std::span<const Preset> all_presets();
// The presets that a model can be drawn with. Qwen-Image and Qwen-Image-2512 have the same sizes: a
// model whose path names neither is taken for both. Their LoRAs need not be there (preset_loras).
std::vector<const Preset*> presets_for(const ModelDirectory& model);
inline constexpr const char* kNoPreset = "none";
// Error(kUsage) that begins with `label` and names the legal ones.
const Preset& preset_of_name(const std::string& name, const std::string& label);

// Error(kUsage) that begins with `label` where the preset belongs to other models.
void check_preset(const Preset& preset, const ModelDirectory& model, const std::string& label);
// Returns the LoRAs of the preset for this model. Their files lie in its folder or in `loras/`
// there, or one or two folders above it, each with or without a folder of the repository's name.
// Error(kUsage) that begins with `label` where a file is not there; it names no path.
std::vector<Lora> preset_loras(const Preset& preset, const ModelDirectory& model,
                               const std::string& label);

// The table, a line per preset, for --preset list.
std::string presets_text();

}  // namespace weft
