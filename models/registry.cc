#include "models/registry.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "models/autoencoder_kl/vae.h"
#include "models/causal_decoder/text_model.h"
#include "models/config_check.h"
#include "models/umt5/encoder.h"
#include "models/wan/family.h"
#include "models/wan/transformer.h"
#include "models/wan/vae.h"
#include "models/z_image/family.h"
#include "models/z_image/names.h"
#include "models/z_image/transformer.h"

namespace weft {

namespace {

namespace fs = std::filesystem;

StreamDefaults read_stream(const nlohmann::json& json, const std::string& file) {
  const std::string what = file + ": stream";
  if (!json.is_object())
    throw Error(ErrorKind::kModel, what + " = " + json.dump() + " (legal: an object)");
  ConfigCheck check(json, what);
  check.keys({"caption", "block_frames", "window_frames"}, {"moods", "clean_pass"});
  check.finish("the settings of streams");
  constexpr IntRange kFrames{1, 1 << 16};
  StreamDefaults out{.caption = json_string(json, "caption", what),
                     .moods = {},
                     .block_frames = json_int(json, "block_frames", what, kFrames),
                     .window_frames = json_int(json, "window_frames", what, kFrames),
                     .clean_pass = json_bool_or(json, "clean_pass", what, false)};
  if (json_has(json, "moods")) out.moods = json_strings(json, "moods", what);
  if (out.moods.empty() != (out.caption.find("{mood}") == std::string::npos))
    throw Error(ErrorKind::kModel,
                what + ": caption = '" + out.caption + "', and " +
                    std::to_string(out.moods.size()) +
                    " moods (legal: moods and a caption with {mood}, or neither)");
  return out;
}

DefaultSettings read_weft_json(const std::string& path) {
  const nlohmann::json json = read_config(path);
  ConfigCheck check(json, path);
  check.keys({},
             {"name", "negative_prompt", "width", "height", "num_frames", "trained_frames", "fps",
              "steps", "guidance_scale", "guidance_scale_2", "flow_shift", "teacache", "stream"});
  check.finish("a file of default settings");
  constexpr IntRange kPositive{1, 1 << 20};
  DefaultSettings out;
  out.origin = "weft.json";
  out.name = json_string_or(json, "name", path, fs::path(path).parent_path().filename().string());
  out.negative_prompt = json_string_or(json, "negative_prompt", path, "");
  out.width = json_int_or(json, "width", path, out.width, kPositive);
  out.height = json_int_or(json, "height", path, out.height, kPositive);
  out.frames = json_int_or(json, "num_frames", path, out.frames, kPositive);
  if (json_has(json, "trained_frames"))
    out.trained_frames = json_int_or(json, "trained_frames", path, out.frames, kPositive);
  out.fps = json_number_or(json, "fps", path, out.fps);
  out.steps = static_cast<int>(json_int_or(json, "steps", path, out.steps, kPositive));
  out.guidance_scale = json_number_or(json, "guidance_scale", path, out.guidance_scale);
  if (json_has(json, "guidance_scale_2"))
    out.guidance_scale_2 = json_number(json, "guidance_scale_2", path);
  if (json_has(json, "flow_shift")) out.flow_shift = json_number(json, "flow_shift", path);
  if (json_has(json, "teacache")) out.teacache = json_numbers(json, "teacache", path);
  if (json_has(json, "stream")) out.stream = read_stream(json_field(json, "stream", path), path);
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

void require_config(const std::string& path) {
  require(fs::is_regular_file(path), path + ": missing; it says what the weights beside it are");
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

constexpr const ModelFamily* kFamilies[] = {&kWanFamily, &kZImageFamily};

const ModelFamily& family_of(const std::string& class_name, const std::string& index_path) {
  std::string legal;
  for (const ModelFamily* family : kFamilies) {
    if (class_name == family->class_name) return *family;
    legal += (legal.empty() ? "" : ", ") + std::string(family->class_name);
  }
  throw Error(ErrorKind::kModel, index_path + ": _class_name " + class_name +
                                     " is not supported yet (legal: " + legal + ")");
}

// The classes of components. A config.json is of the first row that recognises it.
template <class Model>
struct ComponentRow {
  const char* class_name;
  // `name` is the config's _class_name or model_type, "" where it has neither.
  bool (*is)(const std::string& name, const nlohmann::json& config);
  std::shared_ptr<const Model> (*open)(const std::string& path);
  std::shared_ptr<const Model> (*of_tensors)(const TensorFile& file) = nullptr;
  // Returns whether a file without a config holds the model. A file that no row knows is the
  // first row's.
  bool (*holds)(const TensorFile& file) = nullptr;
};

// A config.json of the original repository names no class.
bool is_original_wan(const nlohmann::json& config) {
  return config.contains("num_heads") && config.contains("ffn_dim");
}

constexpr ComponentRow<TransformerModel> kTransformers[] = {
    {"WanTransformer3DModel",
     [](const std::string& name, const nlohmann::json& config) {
       return name == "WanTransformer3DModel" || (name.empty() && is_original_wan(config));
     },
     [](const std::string& path) -> std::shared_ptr<const TransformerModel> {
       return make_wan_model(WanConfig::from_json_file(path));
     },
     [](const TensorFile& file) -> std::shared_ptr<const TransformerModel> {
       return make_wan_model(WanConfig::from_tensors(file));
     }},
    {"ZImageTransformer2DModel",
     [](const std::string& name, const nlohmann::json&) {
       return name == "ZImageTransformer2DModel";
     },
     [](const std::string& path) -> std::shared_ptr<const TransformerModel> {
       return make_z_image_model(ZImageConfig::from_json_file(path));
     },
     [](const TensorFile& file) -> std::shared_ptr<const TransformerModel> {
       return make_z_image_model(ZImageConfig::from_tensors(file));
     },
     holds_z_image}};

constexpr ComponentRow<TextEncoderModel> kTextEncoders[] = {
    {"UMT5EncoderModel",
     [](const std::string& name, const nlohmann::json&) { return name == "umt5"; },
     [](const std::string& path) -> std::shared_ptr<const TextEncoderModel> {
       return make_umt5_model(Umt5Config::from_json_file(path));
     }},
    {"T5EncoderModel", [](const std::string& name, const nlohmann::json&) { return name == "t5"; },
     [](const std::string& path) -> std::shared_ptr<const TextEncoderModel> {
       return make_umt5_model(Umt5Config::from_json_file(path));
     }},
    {"Qwen3Model", [](const std::string& name, const nlohmann::json&) { return name == "qwen3"; },
     [](const std::string& path) -> std::shared_ptr<const TextEncoderModel> {
       return make_decoder_text_model(DecoderConfig::from_json_file(path));
     }}};

constexpr ComponentRow<VaeModel> kVaes[] = {
    {"AutoencoderKLWan",
     [](const std::string& name, const nlohmann::json&) { return name == "AutoencoderKLWan"; },
     [](const std::string& path) -> std::shared_ptr<const VaeModel> {
       return make_wan_vae_model(WanVaeConfig::from_json_file(path));
     }},
    {"AutoencoderKL",
     [](const std::string& name, const nlohmann::json&) { return name == "AutoencoderKL"; },
     [](const std::string& path) -> std::shared_ptr<const VaeModel> {
       return make_kl_vae_model(KlVaeConfig::from_json_file(path));
     }}};

// Returns the config's _class_name, else its model_type, else "".
std::string class_of(const nlohmann::json& config, const std::string& path) {
  const std::string name = json_string_or(config, "_class_name", path, "");
  return name.empty() ? json_string_or(config, "model_type", path, "") : name;
}

// Returns the row of a config, or null.
template <class Model, size_t N>
const ComponentRow<Model>* row_of(const ComponentRow<Model> (&rows)[N],
                                  const nlohmann::json& config, const std::string& path) {
  const std::string name = class_of(config, path);
  for (const auto& row : rows)
    if (row.is(name, config)) return &row;
  return nullptr;
}

template <class Model, size_t N>
std::string legal_classes(const ComponentRow<Model> (&rows)[N]) {
  std::string legal;
  for (const auto& row : rows) legal += (legal.empty() ? "" : ", ") + std::string(row.class_name);
  return legal;
}

template <class Model, size_t N>
std::shared_ptr<const Model> open_component(const ComponentRow<Model> (&rows)[N],
                                            const std::string& path) {
  require_config(path);
  const nlohmann::json config = read_config(path);
  const ComponentRow<Model>* row = row_of(rows, config, path);
  // A config without a class is read as the first row's, which names what it lacks.
  const bool unnamed = !json_has(config, "_class_name") && !json_has(config, "model_type");
  if (!row && unnamed) row = &rows[0];
  require(row, path + ": _class_name or model_type " + class_of(config, path) +
                   " is not supported (legal: " + legal_classes(rows) + ")");
  return row->open(path);
}

}  // namespace

std::string folder_name(const std::string& path) {
  const std::string name = fs::path(path).filename().string();
  return name.empty() ? fs::path(path).parent_path().filename().string() : name;
}

std::shared_ptr<const TransformerModel> open_transformer(const std::string& config_path) {
  return open_component(kTransformers, config_path);
}
std::shared_ptr<const TextEncoderModel> open_text_encoder(const std::string& config_path) {
  return open_component(kTextEncoders, config_path);
}
std::shared_ptr<const VaeModel> open_vae(const std::string& config_path) {
  return open_component(kVaes, config_path);
}

std::shared_ptr<const TransformerModel> open_transformer(const TensorFile& file) {
  for (const auto& row : kTransformers)
    if (row.holds && row.holds(file)) return row.of_tensors(file);
  return kTransformers[0].of_tensors(file);
}

std::optional<ComponentFacts> component_facts(const std::string& config_path) {
  const nlohmann::json config = read_json_file(config_path);
  if (const auto* row = row_of(kTransformers, config, config_path)) {
    const auto model = row->open(config_path);
    return ComponentFacts{row->class_name, model->tensors(), model->description()};
  }
  if (const auto* row = row_of(kTextEncoders, config, config_path))
    return ComponentFacts{row->class_name, row->open(config_path)->tensors(), ""};
  if (const auto* row = row_of(kVaes, config, config_path))
    return ComponentFacts{row->class_name, row->open(config_path)->tensors(), ""};
  return std::nullopt;
}

std::string known_components() {
  return legal_classes(kTransformers) + ", " + legal_classes(kTextEncoders) + ", " +
         legal_classes(kVaes);
}

DefaultSettings default_settings(const ModelDirectory& model) {
  const std::string file = model.path + "/weft.json";
  return fs::exists(file) ? read_weft_json(file) : model.family->defaults(model);
}

ModelDirectory open_model_directory(const std::string& path) {
  require(fs::is_directory(path), path + ": no such model directory");
  const std::string index_path = path + "/model_index.json";
  if (!fs::is_regular_file(index_path)) require(false, index_path + ": missing; " + advice(path));
  const nlohmann::json index = read_config(index_path);

  ModelDirectory model;
  model.path = path;
  model.family = &family_of(json_string(index, "_class_name", index_path), index_path);
  model.transformer = component(index, "transformer", path, index_path);
  model.transformer_2 = component(index, "transformer_2", path, index_path);
  model.text_encoder = component(index, "text_encoder", path, index_path);
  model.tokenizer = component(index, "tokenizer", path, index_path);
  model.scheduler = component(index, "scheduler", path, index_path);
  model.vae = component(index, "vae", path, index_path);
  if (json_has(index, "boundary_ratio"))
    model.boundary_ratio = json_number(index, "boundary_ratio", index_path);
  require(!json_bool_or(index, "expand_timesteps", index_path, false),
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

  for (int i = 0; i < model.experts(); ++i)
    model.transformers.push_back(open_transformer(model.expert_path(i) + "/config.json"));
  const TransformerTraits& traits = model.expert(0).traits();
  require(traits.in_channels == traits.out_channels,
          model.transformer + "/config.json: in_channels " + std::to_string(traits.in_channels) +
              ", out_channels " + std::to_string(traits.out_channels) +
              ": image to video is not supported yet");
  model.text_model = open_text_encoder(model.text_encoder + "/config.json");
  model.vae_model = open_vae(model.vae + "/config.json");
  model.defaults = default_settings(model);
  return model;
}

}  // namespace weft
