#include "models/presets.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "io/nearest.h"
#include "models/registry.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

// Two releases of one network.
constexpr const char kQwenFirst[] = "qwen-image", kQwen2512[] = "qwen-image-2512";

// Qwen-Image's scheduler has the exponent ln 3 then, which is a shift of 3.
Preset lightning(const char* name, const char* model, const char* repository, const char* file,
                 int steps) {
  return {name, model, repository, {{file}}, "euler", steps, 1, 3};
}

// The settings are those of the files' authors (lightx2v). Wan's are drawn at four timesteps of the
// training's grid.
const std::vector<Preset>& table() {
  using enum LoraExpert;
  constexpr const char *kWan21 = "lightx2v/Wan2.1-Distill-Loras",
                       *kWan22 = "lightx2v/Wan2.2-Distill-Loras",
                       *kQwen = "lightx2v/Qwen-Image-Lightning",
                       *kLightning2512 = "lightx2v/Qwen-Image-2512-Lightning";
  static const std::vector<Preset> presets{
      {"distill-4", nullptr, nullptr, {}, "distill-4", 4, 1, 5},
      {"wan2.1-t2v-lightx2v-4",
       "wan2.1-t2v-14b",
       kWan21,
       {{"wan2.1_t2v_14b_lora_rank64_lightx2v_4step.safetensors"}},
       "distill-4",
       4,
       1,
       5},
      {"wan2.1-i2v-lightx2v-4",
       "wan2.1-i2v-14b",
       kWan21,
       {{"wan2.1_i2v_lora_rank64_lightx2v_4step.safetensors"}},
       "distill-4",
       4,
       1,
       5},
      {"wan2.2-t2v-lightx2v-4",
       "wan2.2-t2v-a14b",
       kWan22,
       {{"wan2.2_t2v_A14b_high_noise_lora_rank64_lightx2v_4step_1217.safetensors", kHigh},
        {"wan2.2_t2v_A14b_low_noise_lora_rank64_lightx2v_4step_1217.safetensors", kLow}},
       "distill-4",
       4,
       1,
       5},
      {"wan2.2-i2v-lightx2v-4",
       "wan2.2-i2v-a14b",
       kWan22,
       {{"wan2.2_i2v_A14b_high_noise_lora_rank64_lightx2v_4step_1022.safetensors", kHigh},
        {"wan2.2_i2v_A14b_low_noise_lora_rank64_lightx2v_4step_1022.safetensors", kLow}},
       "distill-4",
       4,
       1,
       5},
      lightning("qwen-image-lightning-4", kQwenFirst, kQwen,
                "Qwen-Image-Lightning-4steps-V2.0.safetensors", 4),
      lightning("qwen-image-lightning-8", kQwenFirst, kQwen,
                "Qwen-Image-Lightning-8steps-V2.0.safetensors", 8),
      lightning("qwen-image-2512-lightning-4", kQwen2512, kLightning2512,
                "Qwen-Image-2512-Lightning-4steps-V1.0-bf16.safetensors", 4),
      lightning("qwen-image-2512-lightning-8", kQwen2512, kLightning2512,
                "Qwen-Image-2512-Lightning-8steps-V1.0-bf16.safetensors", 8),
  };
  return presets;
}

// The published name of a model, whatever its weft.json says.
std::string published_name(const ModelDirectory& model) {
  const char* only = model.family->only_model;
  return only ? only : model.family->defaults(model).name;
}

// The names that a model may have. The releases of Qwen-Image differ in their values alone, so that
// only the name of the weights' file or of a folder above it tells them apart, if any does.
std::vector<std::string> published_names(const ModelDirectory& model) {
  const std::string name = published_name(model);
  if (name != kQwenFirst) return {name};
  const std::string& weights = model.transformer.empty() ? model.path : model.transformer;
  std::string path = fs::absolute(weights).string();
  for (char& c : path)
    c = c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const size_t at = path.rfind(kQwenFirst);
  if (at == std::string::npos) return {kQwenFirst, kQwen2512};
  return {path.compare(at, std::strlen(kQwen2512), kQwen2512) == 0 ? kQwen2512 : kQwenFirst};
}

bool belongs_to(const Preset& preset, const ModelDirectory& model) {
  // A preset for any model counts guidance from 1.
  if (!preset.models) return model.family->guidance != GuidanceForm::kBeyondPositive;
  std::istringstream names(preset.models);
  const std::vector<std::string> own = published_names(model);
  for (std::string name; names >> name;)
    if (std::ranges::count(own, name)) return true;
  return false;
}

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

// The folders in which the LoRAs of a model are looked for.
std::vector<fs::path> lora_folders(const ModelDirectory& model, const char* repository) {
  const fs::path own =
      fs::absolute(model.path + (model.path.ends_with('/') ? "." : "")).lexically_normal();
  const std::string name = fs::path(repository).filename().string();
  std::vector<fs::path> folders;
  for (const fs::path& around : {own, own.parent_path(), own.parent_path().parent_path()})
    for (const fs::path& folder : {around / "loras", around})
      for (const fs::path& last : {folder, folder / name}) folders.push_back(last);
  return folders;
}

}  // namespace

std::vector<Preset::Field> Preset::fields() const {
  return {{"solver", solver},
          {"steps", std::to_string(steps)},
          {"guidance_scale", number_text(guidance_scale)},
          {"flow_shift", number_text(flow_shift)},
          {"guidance_scale_2", ""},
          {"sigmas", ""}};
}

std::span<const Preset> all_presets() { return table(); }

std::vector<const Preset*> presets_for(const ModelDirectory& model) {
  std::vector<const Preset*> out;
  for (const Preset& preset : table())
    if (belongs_to(preset, model)) out.push_back(&preset);
  return out;
}

const Preset& preset_of_name(const std::string& name, const std::string& label) {
  const auto found = std::ranges::find(table(), name, &Preset::name);
  if (found != table().end()) return *found;
  std::vector<std::string> known;
  for (const Preset& preset : table()) known.emplace_back(preset.name);
  throw Error(ErrorKind::kUsage, label + " is '" + name + "', legal: " + listed(known) +
                                     did_you_mean(nearest(name, known)));
}

void check_preset(const Preset& preset, const ModelDirectory& model, const std::string& label) {
  if (belongs_to(preset, model)) return;
  std::string names;
  for (const std::string& name : published_names(model))
    names += (names.empty() ? "" : " or ") + name;
  throw Error(ErrorKind::kUsage,
              label + " is " + preset.name + ", which belongs to " +
                  (preset.models ? preset.models : "models whose guidance counts from 1") +
                  ", but the model is " + names + "; legal with it: " +
                  listed(presets_for(model), [](const Preset* other) { return other->name; }));
}

std::vector<Lora> preset_loras(const Preset& preset, const ModelDirectory& model,
                               const std::string& label) {
  std::vector<Lora> loras;
  for (const PresetLora& lora : preset.loras) {
    const std::vector<fs::path> folders = lora_folders(model, preset.repository);
    const auto folder = std::ranges::find_if(folders, [&](const fs::path& at) {
      std::error_code unreadable;
      return fs::is_regular_file(at / lora.file, unreadable);
    });
    if (folder == folders.end())
      throw Error(ErrorKind::kUsage,
                  label + " is " + preset.name + ", but its LoRA " + lora.file + " (" +
                      preset.repository +
                      " on Hugging Face) is not there; legal: the file in the folder loras of the "
                      "model's folder or beside that, or another LoRA in its place, as lora");
    loras.push_back(
        {.file = (*folder / lora.file).string(), .scale = lora.scale, .expert = lora.expert});
  }
  return loras;
}

std::string presets_text() {
  std::string out;
  for (const Preset& preset : table()) {
    char line[256];
    std::snprintf(line, sizeof line, "%-28s %-18s steps %d, guidance %g, shift %g, solver %s\n",
                  preset.name, preset.models ? preset.models : "any model", preset.steps,
                  preset.guidance_scale, preset.flow_shift, preset.solver);
    out += line;
    for (const PresetLora& lora : preset.loras)
      out += std::string(30, ' ') + preset.repository + " " + lora.file +
             (lora.expert == LoraExpert::kHigh  ? " (high)"
              : lora.expert == LoraExpert::kLow ? " (low)"
                                                : "") +
             "\n";
    if (preset.loras.empty())
      out += std::string(30, ' ') + "for models, or with a --lora, that are distilled so\n";
  }
  return out;
}

}  // namespace weft
