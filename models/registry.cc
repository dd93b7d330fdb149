#include "models/registry.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "io/nearest.h"
#include "models/config_reader.h"
#include "models/files/components.h"
#include "models/files/model_index.h"
#include "models/files/root_parts.h"
#include "models/files/tokenizer_files.h"

namespace weft {

namespace {

namespace fs = std::filesystem;

void require(bool there, const std::string& message) {
  if (!there) throw Error(ErrorKind::kModel, message);
}

constexpr const ModelFamily* kFamilies[] = {
    &kWanFamily,  &kWanPictureFamily, &kWanSpeechFamily, &kZImageFamily, &kQwenImageFamily,
    &kFluxFamily, &kFlux2Family,      &kFlux2BaseFamily, &kKrea2Family,  &kKrea2TurboFamily};

// The transformers that need no folder.
std::string families_of_files() {
  std::string legal;
  for (const ModelFamily* family : kFamilies)
    if (family->transformer_class)
      legal += (legal.empty() ? "" : ", ") + std::string(family->transformer_class);
  return legal;
}

const ModelFamily& family_of(const nlohmann::json& index, const std::string& index_path) {
  const std::string class_name = json_string(index, "_class_name", index_path);
  const bool distilled = json_bool_or(index, "is_distilled", index_path, false);
  for (const ModelFamily* family : kFamilies)
    if (class_name == family->class_name && family->distilled.value_or(distilled) == distilled)
      return *family;
  throw Error(ErrorKind::kModel, index_path + ": _class_name " + class_name +
                                     " is not supported yet (legal: " +
                                     listed(kFamilies, &ModelFamily::class_name) + ")");
}

void check_boundary(const ModelDirectory& model, const std::string& where) {
  require(model.transformer_2.empty() || model.boundary_ratio,
          where + ": two experts need boundary_ratio, from which the step to switch follows");
  require(!model.boundary_ratio || (*model.boundary_ratio > 0 && *model.boundary_ratio < 1),
          where + ": boundary_ratio = " + std::to_string(model.boundary_ratio.value_or(0)) +
              " (legal: between 0 and 1)");
}

[[noreturn]] void refuse(const std::string& why) { throw Error(ErrorKind::kUsage, why); }

// Refuses a model of single files that lacks a text encoder, and names the flag that is free.
void check_encoders(const PartFiles& files, const ModelDirectory& model, const std::string& whole) {
  const ModelFamily& family = *model.family;
  const std::string free = files.text_encoder.empty() ? "--text-encoder" : "--text-encoder-2";
  if (model.text_encoder.empty())
    refuse(model.transformer + " needs a text encoder: give " + free + " FILE, a " +
           family.text_encoder_class + whole);
  if (family.pooled.encoder && model.pooled_encoder.empty())
    refuse(model.transformer + " needs another text encoder: give " + free + " FILE, a " +
           family.pooled_encoder_class + whole);
}

// Looks for the tokenizers that no flag gives, and names the flag of one that is not found.
void find_tokenizers(const PartFiles& files, ModelDirectory& model, const std::string& whole) {
  const ModelFamily& family = *model.family;
  const std::string free = files.tokenizer.empty() ? "--tokenizer" : "--tokenizer-2";
  for (const auto& [folders, encoder, tokenizer] :
       {std::tuple{&family.text, &model.text_encoder, &model.tokenizer},
        {&family.pooled, &model.pooled_encoder, &model.pooled_tokenizer}}) {
    if (!folders->encoder || !tokenizer->empty()) continue;
    *tokenizer = find_tokenizer(*encoder, folders->kind, folders->tokenizer);
    if (tokenizer->empty())
      refuse(*encoder + " holds no tokenizer: give " + free + " FILE (" + files_of(folders->kind) +
             ")" + whole);
  }
}

// Takes the parts that no flag gives from the transformer's file, where it holds them.
void take_parts_beside(const PartNames& names, ModelDirectory& model) {
  const ModelFamily& family = *model.family;
  const auto take = [&](const auto& rows, const char* class_name, std::string& path) {
    if (!path.empty() || !class_name) return;
    const auto found = find_part(rows, names, class_name);
    if (found.row && found.row->class_name == std::string(class_name)) path = model.path;
  };
  take(kTextEncoders, family.text_encoder_class, model.text_encoder);
  take(kTextEncoders, family.pooled_encoder_class, model.pooled_encoder);
  take(kVaes, family.vae_class, model.vae);
}

// Gives the text encoder the rows that the family's transformers read.
void tap_text(ModelDirectory& model) {
  const std::span<const int> usual = model.family->text_taps;
  if (model.text_taps.empty()) model.text_taps.assign(usual.begin(), usual.end());
  if (model.text_taps.empty()) return;
  const auto refuse_layers = [&](const std::string& why) {
    throw Error(ErrorKind::kModel, model.text_encoder + ": " + why);
  };
  try {
    model.text_model = model.text_model->with_taps(model.text_taps);
  } catch (const Error& error) {
    refuse_layers(error.what());
  }
  if (!model.text_model) refuse_layers("an encoder that gives no states of its layers");
}

// The model that consists of the files alone.
ModelDirectory model_of_files(const PartFiles& files) {
  if (files.transformer.empty())
    refuse("the files are no whole model: give --transformer FILE, or --model FOLDER");
  ModelDirectory model;
  model.path = files.transformer;
  const PartNames names(files.transformer);
  const ComponentRow<TransformerModel>* row = find_part(kTransformers, names, "").row;
  require(row, files.transformer + ": " + holdings(files.transformer) +
                   " (legal for --transformer: " + legal_classes(kTransformers) + ")");
  model.family = family_of_transformer(row->class_name);
  require(model.family,
          files.transformer + ": holds a " + row->class_name +
              ", which needs --model FOLDER (legal without one: " + families_of_files() + ")");
  const ModelFamily& family = *model.family;
  files.replace_in(model);
  take_parts_beside(names, model);
  const std::string whole =
      std::string("; or give --model FOLDER, which holds all parts of a ") + family.class_name;
  check_encoders(files, model, whole);
  if (model.vae.empty())
    refuse(model.transformer + " needs a VAE: give --vae FILE, an " + family.vae_class + whole);
  find_tokenizers(files, model, whole);
  for (int i = 0; i < model.experts(); ++i)
    model.transformers.push_back(
        kTransformers.open_part(model.expert_path(i), "", family.transformer_class));
  model.text_model = kTextEncoders.open_part(model.text_encoder, "", family.text_encoder_class);
  tap_text(model);
  if (family.pooled.encoder)
    model.pooled_model =
        kTextEncoders.open_part(model.pooled_encoder, "", family.pooled_encoder_class);
  model.vae_model = kVaes.open_part(model.vae, "", family.vae_class);
  if (!model.image_encoder.empty())
    model.image_model = kImageEncoders.open_part(model.image_encoder, "", "");
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

const KnownModel* known_model(std::span<const KnownModel> known, const TransformerTraits& traits) {
  for (const KnownModel& model : known)
    if (model.width == traits.width && model.blocks == traits.blocks &&
        model.reads_guidance == traits.reads_guidance)
      return &model;
  return nullptr;
}

const ModelFamily* family_of_transformer(const std::string& class_name) {
  for (const ModelFamily* family : kFamilies)
    if (family->transformer_class && class_name == family->transformer_class) return family;
  return nullptr;
}

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

// The family of a folder without an index, whose root has the transformer; null where it has none.
const ModelFamily* family_of_root(const std::string& path) {
  const std::string config = path + "/config.json";
  if (!fs::is_regular_file(config)) return nullptr;
  const std::string class_name = class_of(read_config(config), config);
  for (const ModelFamily* family : kFamilies)
    if (family->root && class_name == family->class_name) return family;
  return nullptr;
}

// Reads the model_index.json of a folder, or finds the parts of one without.
ModelDirectory listed_parts(const std::string& path) {
  require(fs::is_directory(path), path + ": no such model directory");
  const std::string index_path = path + "/model_index.json";
  if (!fs::is_regular_file(index_path))
    if (const ModelFamily* family = family_of_root(path)) return root_parts(path, *family);
  if (!fs::is_regular_file(index_path))
    require(false, index_path + ": missing; " + advice_without_index(path));
  const nlohmann::json index = read_config(index_path);

  ModelDirectory model;
  model.path = path;
  model.family = &family_of(index, index_path);
  for (const auto& [name, part] : components_of(*model.family))
    model.*part = component_folder(index, name, path, index_path);
  if (json_has(index, "boundary_ratio"))
    model.boundary_ratio = json_number(index, "boundary_ratio", index_path);
  model.expand_timesteps = json_bool_or(index, "expand_timesteps", index_path, false);
  if (model.family->read_index) model.family->read_index(index_path, model);
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

bool is_model_directory(const std::string& path) {
  return fs::is_regular_file(path + "/model_index.json") || family_of_root(path);
}

ModelDirectory open_model_directory(const std::string& path, const PartFiles& files) {
  if (path.empty()) return model_of_files(files);
  ModelDirectory model = listed_parts(path);
  const RootLayout* root = model.family->root;
  ModelDirectory own = model;  // without files
  if (root) own.vae = own.text_encoder = own.tokenizer = "";
  const std::string index_path = path + (root ? "/config.json" : "/model_index.json");
  files.replace_in(model);
  root ? check_root_parts(model) : check_parts(own, model, index_path);
  const auto open = [&](const auto& rows, const std::string& part, const std::string& folder,
                        const char* class_name) {
    const std::string config = folder.empty() ? "" : folder + "/config.json";
    return part == folder ? rows.open(config)
                          : rows.open_part(part, config, class_name ? class_name : "");
  };
  for (int i = 0; i < model.experts(); ++i)
    model.transformers.push_back(open(kTransformers, model.expert_path(i), own.expert_path(i),
                                      model.family->transformer_class));
  model.text_model =
      open(kTextEncoders, model.text_encoder, own.text_encoder, model.family->text_encoder_class);
  tap_text(model);
  if (model.family->pooled.encoder) {
    model.pooled_model = open(kTextEncoders, model.pooled_encoder, own.pooled_encoder,
                              model.family->pooled_encoder_class);
    require(model.pooled_model->traits().pooled_row != nullptr,
            model.pooled_encoder +
                "/config.json: an encoder that makes no vector of a prompt (legal: CLIPTextModel)");
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
  if (root) model.scheduler_config = model.family->pipeline(model).scheduler;
  if (model.family->pictures) model.pictures = model.family->pictures(model);
  if (model.family->chunks) model.chunks = model.family->chunks(model);
  model.defaults = default_settings(model);
  return model;
}

}  // namespace weft
