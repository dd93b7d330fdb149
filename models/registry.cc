#include "models/registry.h"

#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/json.h"

namespace weft {

namespace {

namespace fs = std::filesystem;

// Published defaults of the Wan family (Wan-Video/Wan2.1 and Wan2.2, generate.py and configs). A
// row is found by the configuration's width, channels and number of experts.
struct DefaultsRow {
  const char* name;
  int64_t width, in_channels, out_channels;  // the transformer's
  int experts;
  int steps;
  double shift, guidance, guidance_2;  // guidance_2 0: one expert
  int64_t frames;
  double fps;
  int64_t picture_width, picture_height;
};

constexpr DefaultsRow kDefaults[] = {
    {"wan2.1-t2v-1.3b", 1536, 16, 16, 1, 50, 5, 5, 0, 81, 16, 832, 480},
    {"wan2.1-t2v-14b", 5120, 16, 16, 1, 50, 5, 5, 0, 81, 16, 1280, 720},
    {"wan2.2-t2v-a14b", 5120, 16, 16, 2, 40, 12, 4, 3, 81, 16, 1280, 720},
    {"wan2.2-i2v-a14b", 5120, 36, 16, 2, 40, 5, 3.5, 3.5, 81, 16, 1280, 720},
    {"wan2.2-ti2v-5b", 3072, 48, 48, 1, 50, 5, 5, 0, 121, 24, 1280, 704},
};

DefaultSettings built_in(const DefaultsRow& row) {
  DefaultSettings out;
  out.name = row.name;
  out.origin = "built-in";
  out.width = row.picture_width;
  out.height = row.picture_height;
  out.frames = row.frames;
  out.fps = row.fps;
  out.steps = row.steps;
  out.guidance_scale = row.guidance;
  if (row.guidance_2 > 0) out.guidance_scale_2 = row.guidance_2;
  out.flow_shift = row.shift;
  return out;
}

DefaultSettings read_weft_json(const std::string& path) {
  const nlohmann::json json = read_json_file(path);
  if (!json.is_object()) throw Error(ErrorKind::kModel, path + ": not a JSON object");
  constexpr std::array kKnown = {
      "name", "negative_prompt", "width",          "height",           "num_frames",
      "fps",  "steps",           "guidance_scale", "guidance_scale_2", "flow_shift"};
  for (const auto& [key, value] : json.items()) {
    if (key.starts_with("_")) continue;
    bool known = false;
    std::string all;
    for (const char* name : kKnown) {
      known |= key == name;
      all += (all.empty() ? "" : ", ") + std::string(name);
    }
    if (!known)
      throw Error(ErrorKind::kModel, path + ": unknown key " + key + " (known: " + all + ")");
  }
  constexpr IntRange kPositive{1, 1 << 20};
  DefaultSettings out;
  out.origin = "weft.json";
  out.name = json_string_or(json, "name", path, fs::path(path).parent_path().filename().string());
  out.negative_prompt = json_string_or(json, "negative_prompt", path, "");
  out.width = json_int_or(json, "width", path, out.width, kPositive);
  out.height = json_int_or(json, "height", path, out.height, kPositive);
  out.frames = json_int_or(json, "num_frames", path, out.frames, kPositive);
  out.fps = json_number_or(json, "fps", path, out.fps);
  out.steps = static_cast<int>(json_int_or(json, "steps", path, out.steps, kPositive));
  out.guidance_scale = json_number_or(json, "guidance_scale", path, out.guidance_scale);
  if (json_has(json, "guidance_scale_2"))
    out.guidance_scale_2 = json_number(json, "guidance_scale_2", path);
  if (json_has(json, "flow_shift")) out.flow_shift = json_number(json, "flow_shift", path);
  if (out.fps <= 0)
    throw Error(ErrorKind::kModel,
                path + ": fps = " + std::to_string(out.fps) + " (legal: above 0)");
  return out;
}

// Returns the folder of a component, or "" if model_index.json has [null, null], null or no entry.
std::string component(const nlohmann::json& index, const char* name, const std::string& folder,
                      const std::string& what) {
  if (!json_has(index, name)) return "";
  const nlohmann::json& entry = index.at(name);
  if (!entry.is_array() || entry.size() != 2)
    throw Error(ErrorKind::kModel, what + ": " + name + " = " + entry.dump() +
                                       " (legal: [library, class] or [null, null])");
  return entry[1].is_null() ? "" : folder + "/" + name;
}

void require(bool there, const std::string& message) {
  if (!there) throw Error(ErrorKind::kModel, message);
}

WanConfig expert(const std::string& folder) {
  const std::string path = folder + "/config.json";
  require(fs::is_regular_file(path), path + ": missing; it says what the weights beside it are");
  return WanConfig::from_json_file(path);
}

// Suggests what to do about a folder without model_index.json.
std::string advice(const std::string& path) {
  for (const fs::directory_entry& entry : fs::directory_iterator(path))
    if (entry.path().extension() == ".pth")
      return "the folder holds " + entry.path().filename().string() +
             ", and .pth files are not read (loading a pickle runs code): try the repository whose "
             "name ends in -Diffusers, or the safetensors of Comfy-Org/Wan_2.1_ComfyUI_repackaged";
  return "a model directory in the diffusers layout has one: try the folder that holds "
         "transformer/ "
         "and vae/, or the repository whose name ends in -Diffusers";
}

}  // namespace

DefaultSettings default_settings(const std::string& path, const WanConfig& config, int experts) {
  const std::string file = path + "/weft.json";
  if (fs::exists(file)) return read_weft_json(file);
  for (const DefaultsRow& row : kDefaults)
    if (row.width == config.width() && row.in_channels == config.in_channels &&
        row.out_channels == config.out_channels && row.experts == experts)
      return built_in(row);
  DefaultSettings out = built_in(kDefaults[0]);  // the family's, for an unpublished size
  out.name = fs::path(path).filename().string();
  if (out.name.empty()) out.name = fs::path(path).parent_path().filename().string();
  out.flow_shift.reset();
  return out;
}

ModelDirectory open_model_directory(const std::string& path) {
  require(fs::is_directory(path), path + ": no such model directory");
  const std::string index_path = path + "/model_index.json";
  if (!fs::is_regular_file(index_path)) require(false, index_path + ": missing; " + advice(path));
  const nlohmann::json index = read_json_file(index_path);
  require(index.is_object(), index_path + ": not a JSON object");

  ModelDirectory model;
  model.path = path;
  model.class_name = json_string(index, "_class_name", index_path);
  require(model.class_name == "WanPipeline", index_path + ": _class_name " + model.class_name +
                                                 " is not supported yet (legal: WanPipeline)");
  model.transformer = component(index, "transformer", path, index_path);
  model.transformer_2 = component(index, "transformer_2", path, index_path);
  model.text_encoder = component(index, "text_encoder", path, index_path);
  model.tokenizer = component(index, "tokenizer", path, index_path);
  model.scheduler = component(index, "scheduler", path, index_path);
  model.vae = component(index, "vae", path, index_path);
  if (json_has(index, "boundary_ratio"))
    model.boundary_ratio = json_number(index, "boundary_ratio", index_path);
  model.expand_timesteps = json_bool_or(index, "expand_timesteps", index_path, false);
  require(!model.expand_timesteps,
          index_path + ": expand_timesteps = true is not supported yet (Wan 2.2 TI2V-5B)");

  for (const auto& [name, folder] : {std::pair{"transformer", &model.transformer},
                                     {"transformer_2", &model.transformer_2},
                                     {"text_encoder", &model.text_encoder},
                                     {"tokenizer", &model.tokenizer},
                                     {"scheduler", &model.scheduler},
                                     {"vae", &model.vae}}) {
    require(!folder->empty() || folder == &model.transformer_2,
            index_path + ": the pipeline has no " + name);
    require(folder->empty() || fs::is_directory(*folder),
            *folder + ": missing; " + index_path + " lists it");
  }
  for (const std::string& file : {model.text_encoder + "/config.json", model.vae + "/config.json",
                                  model.scheduler + "/scheduler_config.json"})
    require(fs::is_regular_file(file), file + ": missing");
  require(model.transformer_2.empty() || model.boundary_ratio,
          index_path + ": two experts need boundary_ratio, from which the step to switch follows");
  require(!model.boundary_ratio || (*model.boundary_ratio > 0 && *model.boundary_ratio < 1),
          index_path + ": boundary_ratio = " + std::to_string(model.boundary_ratio.value_or(0)) +
              " (legal: between 0 and 1)");

  model.config = expert(model.transformer);
  if (!model.transformer_2.empty()) model.config_2 = expert(model.transformer_2);
  require(model.config.in_channels == model.config.out_channels,
          model.transformer + "/config.json: in_channels " +
              std::to_string(model.config.in_channels) + ", out_channels " +
              std::to_string(model.config.out_channels) + ": image to video is not supported yet");
  model.defaults = default_settings(path, model.config, model.experts());
  return model;
}

}  // namespace weft
