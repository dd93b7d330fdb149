#include "models/registry.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "io/weights/weights_file.h"
#include "models/autoencoder_kl/vae.h"
#include "models/causal_decoder/names.h"
#include "models/causal_decoder/text_model.h"
#include "models/clip_towers/text.h"
#include "models/clip_towers/vision.h"
#include "models/config_check.h"
#include "models/files/model_index.h"
#include "models/files/tokenizer_files.h"
#include "models/flux/family.h"
#include "models/flux/names.h"
#include "models/flux/transformer.h"
#include "models/footprint.h"
#include "models/qwen_image/family.h"
#include "models/qwen_image/names.h"
#include "models/qwen_image/transformer.h"
#include "models/umt5/encoder.h"
#include "models/umt5/names.h"
#include "models/wan/family.h"
#include "models/wan/names.h"
#include "models/wan/transformer.h"
#include "models/wan/vae.h"
#include "models/wan_s2v/transformer.h"
#include "models/wav2vec2/encoder.h"
#include "models/z_image/family.h"
#include "models/z_image/names.h"
#include "models/z_image/transformer.h"

namespace weft {

namespace {

namespace fs = std::filesystem;

void require(bool there, const std::string& message) {
  if (!there) throw Error(ErrorKind::kModel, message);
}

constexpr const ModelFamily* kFamilies[] = {&kWanFamily, &kWanPictureFamily, &kZImageFamily,
                                            &kQwenImageFamily, &kFluxFamily};

// The transformers that need no folder.
std::string families_of_files() {
  std::string legal;
  for (const ModelFamily* family : kFamilies)
    if (family->transformer_class)
      legal += (legal.empty() ? "" : ", ") + std::string(family->transformer_class);
  return legal;
}

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
  // The configuration of such a file in one line; null where the model itself tells it.
  std::string (*describe)(const TensorFile& file) = nullptr;
};

constexpr const char* kSpeechClass = "WanModel_S2V";

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
     },
     [](const TensorFile& file) { return holds_wan(file) && !holds_wan_s2v(file); }},
    {kSpeechClass,
     [](const std::string& name, const nlohmann::json&) { return name == kSpeechClass; },
     [](const std::string& path) -> std::shared_ptr<const TransformerModel> {
       return make_wan_s2v_model(WanS2vConfig::from_json_file(path));
     },
     [](const TensorFile& file) -> std::shared_ptr<const TransformerModel> {
       return make_wan_s2v_model(WanS2vConfig::from_tensors(file));
     },
     holds_wan_s2v},
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
     holds_z_image},
    {"QwenImageTransformer2DModel",
     [](const std::string& name, const nlohmann::json&) {
       return name == "QwenImageTransformer2DModel";
     },
     [](const std::string& path) -> std::shared_ptr<const TransformerModel> {
       return make_qwen_image_model(QwenImageConfig::from_json_file(path));
     },
     [](const TensorFile& file) -> std::shared_ptr<const TransformerModel> {
       return make_qwen_image_model(QwenImageConfig::from_tensors(file));
     },
     holds_qwen_image},
    {"FluxTransformer2DModel",
     [](const std::string& name, const nlohmann::json&) {
       return name == "FluxTransformer2DModel";
     },
     [](const std::string& path) -> std::shared_ptr<const TransformerModel> {
       return make_flux_model(FluxConfig::from_json_file(path));
     },
     [](const TensorFile& file) -> std::shared_ptr<const TransformerModel> {
       return make_flux_model(FluxConfig::from_tensors(file));
     },
     holds_flux}};

constexpr ComponentRow<TextEncoderModel> kTextEncoders[] = {
    {"UMT5EncoderModel",
     [](const std::string& name, const nlohmann::json&) { return name == "umt5"; },
     [](const std::string& path) -> std::shared_ptr<const TextEncoderModel> {
       return make_umt5_model(Umt5Config::from_json_file(path));
     },
     [](const TensorFile& file) -> std::shared_ptr<const TextEncoderModel> {
       return make_umt5_model(Umt5Config::from_tensors(file));
     },
     holds_umt5, [](const TensorFile& file) { return to_string(Umt5Config::from_tensors(file)); }},
    {"T5EncoderModel", [](const std::string& name, const nlohmann::json&) { return name == "t5"; },
     [](const std::string& path) -> std::shared_ptr<const TextEncoderModel> {
       return make_umt5_model(Umt5Config::from_json_file(path));
     },
     [](const TensorFile& file) -> std::shared_ptr<const TextEncoderModel> {
       return make_umt5_model(Umt5Config::from_tensors(file));
     },
     holds_t5, [](const TensorFile& file) { return to_string(Umt5Config::from_tensors(file)); }},
    {"CLIPTextModel",
     [](const std::string& name, const nlohmann::json&) { return name == "clip_text_model"; },
     [](const std::string& path) -> std::shared_ptr<const TextEncoderModel> {
       return make_clip_text_model(ClipTextConfig::from_json_file(path));
     }},
    {"Qwen3Model", [](const std::string& name, const nlohmann::json&) { return name == "qwen3"; },
     [](const std::string& path) -> std::shared_ptr<const TextEncoderModel> {
       return make_decoder_text_model(DecoderConfig::from_json_file(path),
                                      DecoderRows::kBeforeLast);
     },
     [](const TensorFile& file) -> std::shared_ptr<const TextEncoderModel> {
       return make_decoder_text_model(DecoderConfig::from_tensors(file), DecoderRows::kBeforeLast);
     },
     holds_qwen3,
     [](const TensorFile& file) { return to_string(DecoderConfig::from_tensors(file)); }},
    {"Qwen2_5_VLForConditionalGeneration",
     [](const std::string& name, const nlohmann::json&) { return name == "qwen2_5_vl"; },
     [](const std::string& path) -> std::shared_ptr<const TextEncoderModel> {
       return make_decoder_text_model(DecoderConfig::from_json_file(path), DecoderRows::kFinal);
     },
     [](const TensorFile& file) -> std::shared_ptr<const TextEncoderModel> {
       return make_decoder_text_model(DecoderConfig::from_tensors(file), DecoderRows::kFinal);
     },
     holds_qwen2,
     [](const TensorFile& file) { return to_string(DecoderConfig::from_tensors(file)); }}};

constexpr ComponentRow<ImageEncoderModel> kImageEncoders[] = {
    {"CLIPVisionModel",
     [](const std::string& name, const nlohmann::json&) { return name == "clip_vision_model"; },
     [](const std::string& path) -> std::shared_ptr<const ImageEncoderModel> {
       return make_clip_vision_model(ClipVisionConfig::from_json_file(path));
     },
     [](const TensorFile& file) -> std::shared_ptr<const ImageEncoderModel> {
       return make_clip_vision_model(ClipVisionConfig::from_tensors(file));
     },
     holds_clip_vision,
     [](const TensorFile& file) { return to_string(ClipVisionConfig::from_tensors(file)); }}};

constexpr ComponentRow<AudioEncoderModel> kAudioEncoders[] = {
    {"Wav2Vec2Model",
     [](const std::string& name, const nlohmann::json&) { return name == "wav2vec2"; },
     [](const std::string& path) -> std::shared_ptr<const AudioEncoderModel> {
       return make_wav2vec2_model(Wav2Vec2Config::from_json_file(path));
     }}};

constexpr ComponentRow<VaeModel> kVaes[] = {
    {"AutoencoderKLWan",
     [](const std::string& name, const nlohmann::json&) { return name == "AutoencoderKLWan"; },
     [](const std::string& path) -> std::shared_ptr<const VaeModel> {
       return make_wan_vae_model(WanVaeConfig::from_json_file(path));
     },
     [](const TensorFile& file) -> std::shared_ptr<const VaeModel> {
       return make_wan_vae_model(WanVaeConfig::from_tensors(file));
     },
     holds_wan_vae,
     [](const TensorFile& file) { return to_string(WanVaeConfig::from_tensors(file)); }},
    {"AutoencoderKLQwenImage",
     [](const std::string& name, const nlohmann::json&) {
       return name == "AutoencoderKLQwenImage";
     },
     [](const std::string& path) -> std::shared_ptr<const VaeModel> {
       return make_wan_vae_model(WanVaeConfig::from_json_file(path));
     },
     [](const TensorFile& file) -> std::shared_ptr<const VaeModel> {
       WanVaeConfig config = WanVaeConfig::from_tensors(file);
       config.pictures = true;
       return make_wan_vae_model(config);
     },
     holds_wan_vae,
     [](const TensorFile& file) { return to_string(WanVaeConfig::from_tensors(file)); }},
    {"AutoencoderKL",
     [](const std::string& name, const nlohmann::json&) { return name == "AutoencoderKL"; },
     [](const std::string& path) -> std::shared_ptr<const VaeModel> {
       return make_kl_vae_model(KlVaeConfig::from_json_file(path));
     },
     [](const TensorFile& file) -> std::shared_ptr<const VaeModel> {
       return make_kl_vae_model(KlVaeConfig::from_tensors(file));
     },
     holds_kl_vae,
     [](const TensorFile& file) { return to_string(KlVaeConfig::from_tensors(file)); }}};

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
  require(fs::is_regular_file(path), path + ": missing; it says what the weights beside it are");
  const nlohmann::json config = read_config(path);
  const ComponentRow<Model>* row = row_of(rows, config, path);
  // A config without a class is read as the first row's, which names what it lacks.
  const bool unnamed = !json_has(config, "_class_name") && !json_has(config, "model_type");
  if (!row && unnamed) row = &rows[0];
  require(row, path + ": _class_name or model_type " + class_of(config, path) +
                   " is not supported (legal: " + legal_classes(rows) + ")");
  return row->open(path);
}

// Load a model without reading values. They throw where the file's tensors are not the model's.
void try_load(const TransformerModel& model, Stream& stream, const TensorFile& file) {
  model.load(stream, file, {});
}
void try_load(const TextEncoderModel& model, Stream& stream, const TensorFile& file) {
  model.load(stream, file, DType::kF32, {});
}
void try_load(const ImageEncoderModel& model, Stream& stream, const TensorFile& file) {
  model.load(stream, file, DType::kF32, {});
}
void try_load(const VaeModel& model, Stream& stream, const TensorFile& file) {
  model.load(stream, file, DType::kF32, VaeParts::kDecoder);
}

// The model that a config describes; null where there is no such config, or where the tensors of
// the file are another's.
template <class Model, size_t N>
std::shared_ptr<const Model> fitting(const ComponentRow<Model> (&rows)[N],
                                     const std::string& config_path, const TensorFile& file) {
  if (!fs::is_regular_file(config_path)) return nullptr;
  try {
    const ComponentRow<Model>* row = row_of(rows, read_config(config_path), config_path);
    if (!row) return nullptr;
    std::shared_ptr<const Model> model = row->open(config_path);
    DryRun run;
    try_load(*model, run.stream(), file);
    return model;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kModel) throw;
    return nullptr;
  }
}

// Returns the row of a file's component, that of `class_name` before others; null where no row
// knows the file.
template <class Model, size_t N>
const ComponentRow<Model>* row_of(const ComponentRow<Model> (&rows)[N], const TensorFile& file,
                                  const std::string& class_name = "") {
  const ComponentRow<Model>* found = nullptr;
  for (const auto& row : rows)
    if (row.holds && row.holds(file) && (!found || class_name == row.class_name)) found = &row;
  return found;
}

std::string holdings(const TensorFile& file) {
  const std::optional<ComponentFacts> facts = component_facts(file);
  return facts ? "holds the " + facts->part + " " + facts->class_name
               : "holds no component that is known here";
}

// Opens the component of a weights file. Its configuration is that beside the weights or
// `folder_config`, if one fits, or else follows from the tensors.
template <class Model, size_t N>
std::shared_ptr<const Model> open_part(const ComponentRow<Model> (&rows)[N],
                                       const std::string& weights, const std::string& folder_config,
                                       const std::string& class_name) {
  const TensorFile file = open_weights(weights);
  const std::string beside =
      (fs::path(file.files().front()).parent_path() / "config.json").string();
  for (const std::string& config : {beside, folder_config})
    if (std::shared_ptr<const Model> model = fitting(rows, config, file)) return model;
  const ComponentRow<Model>* row = row_of(rows, file, class_name);
  require(row, weights + ": " + holdings(file) + " (legal here: " +
                   (class_name.empty() ? legal_classes(rows) : class_name) + ")");
  require(!folder_config.empty() || class_name.empty() || class_name == row->class_name,
          weights + ": holds a " + row->class_name + ", and this model's is a " + class_name);
  return row->of_tensors(file);
}

void check_boundary(const ModelDirectory& model, const std::string& where) {
  require(model.transformer_2.empty() || model.boundary_ratio,
          where + ": two experts need boundary_ratio, from which the step to switch follows");
  require(!model.boundary_ratio || (*model.boundary_ratio > 0 && *model.boundary_ratio < 1),
          where + ": boundary_ratio = " + std::to_string(model.boundary_ratio.value_or(0)) +
              " (legal: between 0 and 1)");
}

// The model that consists of the files alone.
ModelDirectory model_of_files(const PartFiles& files) {
  const auto refuse = [](const std::string& why) { throw Error(ErrorKind::kUsage, why); };
  if (files.transformer.empty())
    refuse("the files are no whole model: give --transformer FILE, or --model FOLDER");
  ModelDirectory model;
  model.path = files.transformer;
  files.replace_in(model);
  const TensorFile file = open_weights(model.transformer);
  const ComponentRow<TransformerModel>* row = row_of(kTransformers, file);
  require(row, model.transformer + ": " + holdings(file) +
                   " (legal for --transformer: " + legal_classes(kTransformers) + ")");
  model.family = family_of_transformer(row->class_name);
  require(model.family,
          model.transformer + ": holds a " + row->class_name +
              ", which needs --model FOLDER (legal without one: " + families_of_files() + ")");
  const ModelFamily& family = *model.family;
  if (model.tokenizer.empty() && !model.text_encoder.empty())
    model.tokenizer = find_tokenizer(model.text_encoder);
  const std::string whole =
      std::string("; or give --model FOLDER, which holds all parts of a ") + family.class_name;
  if (model.text_encoder.empty())
    refuse(model.transformer + " needs a text encoder: give --text-encoder FILE, a " +
           family.text_encoder_class + whole);
  if (model.vae.empty())
    refuse(model.transformer + " needs a VAE: give --vae FILE, an " + family.vae_class + whole);
  if (model.tokenizer.empty())
    refuse(model.text_encoder + " holds no tokenizer: give --tokenizer FILE" + whole);
  for (int i = 0; i < model.experts(); ++i)
    model.transformers.push_back(
        open_part(kTransformers, model.expert_path(i), "", family.transformer_class));
  model.text_model = open_part(kTextEncoders, model.text_encoder, "", family.text_encoder_class);
  model.vae_model = open_part(kVaes, model.vae, "", family.vae_class);
  if (!model.image_encoder.empty())
    model.image_model = open_part(kImageEncoders, model.image_encoder, "", "");
  if (model.expert(0).traits().image_columns > 0 && !model.image_model)
    refuse(model.transformer + " needs an image encoder: give --image-encoder FILE, a " +
           kImageEncoders[0].class_name + whole);
  const PipelineFacts facts = family.pipeline(model);
  model.scheduler_config = facts.scheduler;
  model.boundary_ratio = facts.boundary_ratio;
  model.expand_timesteps = facts.expand_timesteps;
  if (family.pictures) model.pictures = family.pictures(model);
  check_boundary(model, model.transformer_2);
  files.note_names(model);
  model.defaults = default_settings(model);
  return model;
}

}  // namespace

const ModelFamily* family_of_transformer(const std::string& class_name) {
  for (const ModelFamily* family : kFamilies)
    if (family->transformer_class && class_name == family->transformer_class) return family;
  return nullptr;
}

std::shared_ptr<const TransformerModel> open_transformer(const std::string& config_path) {
  return open_component(kTransformers, config_path);
}
std::shared_ptr<const TextEncoderModel> open_text_encoder(const std::string& config_path) {
  return open_component(kTextEncoders, config_path);
}
std::shared_ptr<const ImageEncoderModel> open_image_encoder(const std::string& config_path) {
  return open_component(kImageEncoders, config_path);
}
std::shared_ptr<const AudioEncoderModel> open_audio_encoder(const std::string& config_path) {
  return open_component(kAudioEncoders, config_path);
}
std::shared_ptr<const VaeModel> open_vae(const std::string& config_path) {
  return open_component(kVaes, config_path);
}

std::shared_ptr<const TransformerModel> open_transformer(const TensorFile& file) {
  const auto* row = row_of(kTransformers, file);
  return (row ? *row : kTransformers[0]).of_tensors(file);
}

std::optional<ComponentFacts> component_facts(const std::string& config_path) {
  const nlohmann::json config = read_json_file(config_path);
  if (const auto* row = row_of(kTransformers, config, config_path)) {
    const auto model = row->open(config_path);
    return ComponentFacts{"transformer", row->class_name, model->tensors(), model->description()};
  }
  if (const auto* row = row_of(kTextEncoders, config, config_path))
    return ComponentFacts{"text_encoder", row->class_name, row->open(config_path)->tensors(), ""};
  if (const auto* row = row_of(kImageEncoders, config, config_path))
    return ComponentFacts{"image_encoder", row->class_name, row->open(config_path)->tensors(), ""};
  if (const auto* row = row_of(kAudioEncoders, config, config_path))
    return ComponentFacts{"audio_encoder", row->class_name, row->open(config_path)->tensors(), ""};
  if (const auto* row = row_of(kVaes, config, config_path))
    return ComponentFacts{"vae", row->class_name, row->open(config_path)->tensors(), ""};
  return std::nullopt;
}

std::optional<ComponentFacts> component_facts(const TensorFile& file) {
  if (const auto* row = row_of(kTransformers, file)) {
    const auto model = row->of_tensors(file);
    return ComponentFacts{"transformer", row->class_name, model->tensors(), model->description()};
  }
  const auto facts = [&](const char* part, const auto* row) {
    return ComponentFacts{part, row->class_name, row->of_tensors(file)->tensors(),
                          row->describe(file)};
  };
  if (const auto* row = row_of(kTextEncoders, file)) return facts("text_encoder", row);
  if (const auto* row = row_of(kImageEncoders, file)) return facts("image_encoder", row);
  if (const auto* row = row_of(kVaes, file)) return facts("vae", row);
  return std::nullopt;
}

std::string known_components() {
  return legal_classes(kTransformers) + ", " + legal_classes(kTextEncoders) + ", " +
         legal_classes(kImageEncoders) + ", " + legal_classes(kAudioEncoders) + ", " +
         legal_classes(kVaes);
}

namespace {

// Speech to video is published in the layout of its repository: config.json and weights at the
// root.
void refuse_speech_folder(const std::string& path) {
  const std::string config = path + "/config.json";
  if (!fs::is_regular_file(config) || class_of(read_config(config), config) != kSpeechClass) return;
  throw Error(ErrorKind::kModel,
              config + ": _class_name " + kSpeechClass +
                  ": no clips are generated with speech to video yet, because the loop over clips "
                  "is missing (legal: weft inspect, and weft verify of its transformer)");
}

}  // namespace

namespace {

using Part = std::string ModelDirectory::*;

// The components that the model_index.json of a family lists.
std::vector<std::pair<const char*, Part>> components_of(const ModelFamily& family) {
  std::vector<std::pair<const char*, Part>> components{
      {"transformer", &ModelDirectory::transformer},
      {"transformer_2", &ModelDirectory::transformer_2},
      {family.text.encoder, &ModelDirectory::text_encoder},
      {family.text.tokenizer, &ModelDirectory::tokenizer},
      {"scheduler", &ModelDirectory::scheduler},
      {"vae", &ModelDirectory::vae},
      {"audio_encoder", &ModelDirectory::audio_encoder},
      {"image_encoder", &ModelDirectory::image_encoder},
      {"image_processor", &ModelDirectory::image_processor}};
  if (family.pooled.encoder) {
    components.emplace_back(family.pooled.encoder, &ModelDirectory::pooled_encoder);
    components.emplace_back(family.pooled.tokenizer, &ModelDirectory::pooled_tokenizer);
  }
  return components;
}

// Reads the model_index.json of a folder.
ModelDirectory listed_parts(const std::string& path) {
  require(fs::is_directory(path), path + ": no such model directory");
  const std::string index_path = path + "/model_index.json";
  if (!fs::is_regular_file(index_path)) refuse_speech_folder(path);
  if (!fs::is_regular_file(index_path))
    require(false, index_path + ": missing; " + advice_without_index(path));
  const nlohmann::json index = read_config(index_path);

  ModelDirectory model;
  model.path = path;
  model.family = &family_of(json_string(index, "_class_name", index_path), index_path);
  for (const auto& [name, part] : components_of(*model.family))
    model.*part = component_folder(index, name, path, index_path);
  if (json_has(index, "boundary_ratio"))
    model.boundary_ratio = json_number(index, "boundary_ratio", index_path);
  model.expand_timesteps = json_bool_or(index, "expand_timesteps", index_path, false);
  return model;
}

// Refuses a model some of whose parts are missing. `own` has the parts of the folder alone.
void check_parts(const ModelDirectory& own, const ModelDirectory& model,
                 const std::string& index_path) {
  for (const auto& [name, part] : components_of(*model.family)) {
    const bool optional =
        part == &ModelDirectory::transformer_2 || part == &ModelDirectory::audio_encoder ||
        part == &ModelDirectory::image_encoder || part == &ModelDirectory::image_processor;
    const std::string &path = model.*part, &folder = own.*part;
    require(!path.empty() || optional, index_path + ": the pipeline has no " + name);
    require(path.empty() || path != folder || fs::is_directory(folder),
            folder + ": missing; " + index_path + " lists it");
  }
  for (const auto& [part, config] : {std::pair{&ModelDirectory::text_encoder, "/config.json"},
                                     {&ModelDirectory::vae, "/config.json"},
                                     {&ModelDirectory::scheduler, "/scheduler_config.json"}})
    if (const std::string file = own.*part + config; model.*part == own.*part)
      require(fs::is_regular_file(file), file + ": missing");
}

}  // namespace

std::vector<std::string> ModelDirectory::weights_folders() const {
  std::vector<std::string> folders;
  for (const std::string& folder : {transformer, transformer_2, text_encoder, pooled_encoder,
                                    image_encoder, vae, audio_encoder})
    if (!folder.empty()) folders.push_back(folder);
  return folders;
}

ModelDirectory open_model_directory(const std::string& path, const PartFiles& files) {
  if (path.empty()) return model_of_files(files);
  ModelDirectory model = listed_parts(path);
  const ModelDirectory own = model;  // without files
  const std::string index_path = path + "/model_index.json";
  files.replace_in(model);
  check_parts(own, model, index_path);
  const auto open = [&](const auto& rows, const std::string& part, const std::string& folder,
                        const char* class_name) {
    const std::string config = folder + "/config.json";
    return part == folder ? open_component(rows, config)
                          : open_part(rows, part, config, class_name ? class_name : "");
  };
  for (int i = 0; i < model.experts(); ++i)
    model.transformers.push_back(open(kTransformers, model.expert_path(i), own.expert_path(i),
                                      model.family->transformer_class));
  model.text_model =
      open(kTextEncoders, model.text_encoder, own.text_encoder, model.family->text_encoder_class);
  if (model.family->pooled.encoder) {
    const std::string file = model.pooled_encoder + "/config.json";
    model.pooled_model = open_text_encoder(file);
    require(model.pooled_model->pooled_row({}).has_value(),
            file + ": an encoder that makes no vector of a prompt (legal: CLIPTextModel)");
  }
  model.vae_model = open(kVaes, model.vae, own.vae, model.family->vae_class);
  if (!model.audio_encoder.empty())
    model.audio_model = open_audio_encoder(model.audio_encoder + "/config.json");
  if (!model.image_encoder.empty())
    model.image_model = open(kImageEncoders, model.image_encoder, own.image_encoder, nullptr);
  if (!files.transformer_2.empty() && !model.boundary_ratio && model.family->pipeline)
    model.boundary_ratio = model.family->pipeline(model).boundary_ratio;
  check_boundary(model, index_path);
  files.note_names(model);
  if (model.family->pictures) model.pictures = model.family->pictures(model);
  model.defaults = default_settings(model);
  return model;
}

}  // namespace weft
