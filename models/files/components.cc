#include "models/files/components.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "io/weights/weights_file.h"
#include "kernels/dry_run.h"
#include "models/config_reader.h"
#include "models/registry.h"

namespace weft {

namespace {

namespace fs = std::filesystem;

void require(bool there, const std::string& message) {
  if (!there) throw Error(ErrorKind::kModel, message);
}

// Load a model without reading values. They throw where the file's tensors are not the model's.
template <class Model>
void try_load(const Model& model, Stream& stream, const TensorFile& file) {
  model.load(stream, file, {});
}
void try_load(const VaeModel& model, Stream& stream, const TensorFile& file) {
  model.load(stream, file, DType::kF32, VaeParts::kDecoder);
}

// The model that a config describes; null where there is no such config, or where the tensors of
// the file are another's.
template <class Model>
std::shared_ptr<const Model> fitting(ComponentRows<Model> rows, const std::string& config_path,
                                     const TensorFile& file) {
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

// The path of the config.json beside the weights, which may be missing or another's.
std::string config_beside(const TensorFile& file) {
  if (file.files().empty()) return "";
  return (fs::path(file.files().front()).parent_path() / "config.json").string();
}

}  // namespace

// Returns the config's _class_name, else its model_type, else "".
std::string class_of(const nlohmann::json& config, const std::string& path) {
  const std::string name = json_string_or(config, "_class_name", path, "");
  return name.empty() ? json_string_or(config, "model_type", path, "") : name;
}

std::string holdings(const std::string& path) {
  std::string text;
  for (const ComponentFacts& facts : held_components(path))
    text += (text.empty() ? "holds the " : ", the ") + facts.part + " " + facts.class_name;
  return text.empty() ? "holds no component that is known here" : text;
}

template <class Model>
std::shared_ptr<const Model> ComponentRows<Model>::open(const std::string& path) const {
  require(fs::is_regular_file(path), path + ": missing; it says what the weights beside it are");
  const nlohmann::json config = read_config(path);
  const ComponentRow<Model>* row = row_of(*this, config, path);
  // A config without a class is read as the first row's, which names what it lacks.
  const bool unnamed = !json_has(config, "_class_name") && !json_has(config, "model_type");
  if (!row && unnamed) row = &this->front();
  require(row, path + ": _class_name or model_type " + class_of(config, path) +
                   " is not supported (legal: " + legal_classes(*this) + ")");
  return row->open(path);
}

template <class Model>
std::shared_ptr<const Model> ComponentRows<Model>::open_part(const std::string& weights,
                                                             const std::string& folder_config,
                                                             const std::string& class_name) const {
  const auto [found, file] = open_found(*this, weights, class_name);
  for (const std::string& config : {config_beside(file), folder_config})
    if (std::shared_ptr<const Model> model = fitting(*this, config, file)) return model;
  const ComponentRow<Model>* row = found.row;
  require(row, weights + ": " + holdings(weights) + " (legal here: " +
                   (class_name.empty() ? legal_classes(*this) : class_name) + ")");
  require(!folder_config.empty() || class_name.empty() || class_name == row->class_name,
          weights + ": holds a " + row->class_name + ", and this model's is a " + class_name);
  return row->of_tensors(file);
}

template struct ComponentRows<TransformerModel>;
template struct ComponentRows<TextEncoderModel>;
template struct ComponentRows<ImageEncoderModel>;
template struct ComponentRows<AudioEncoderModel>;
template struct ComponentRows<VaeModel>;

std::shared_ptr<const TransformerModel> open_transformer(const std::string& config_path) {
  return kTransformers.open(config_path);
}
std::shared_ptr<const TextEncoderModel> open_text_encoder(const std::string& config_path) {
  return kTextEncoders.open(config_path);
}
std::shared_ptr<const ImageEncoderModel> open_image_encoder(const std::string& config_path) {
  return kImageEncoders.open(config_path);
}
std::shared_ptr<const AudioEncoderModel> open_audio_encoder(const std::string& config_path) {
  return kAudioEncoders.open(config_path);
}
std::shared_ptr<const VaeModel> open_vae(const std::string& config_path) {
  return kVaes.open(config_path);
}

std::shared_ptr<const TransformerModel> open_transformer(const TensorFile& file) {
  if (auto model = fitting(kTransformers, config_beside(file), file)) return model;
  const auto* row = row_of(kTransformers, file);
  return (row ? *row : kTransformers[0]).of_tensors(file);
}

namespace {

// Calls f with each kind of components, its name and its table.
template <class F>
void for_each_kind(const F& f) {
  f(PartKind::kTransformer, "transformer", kTransformers);
  f(PartKind::kTextEncoder, "text_encoder", kTextEncoders);
  f(PartKind::kImageEncoder, "image_encoder", kImageEncoders);
  f(PartKind::kAudioEncoder, "audio_encoder", kAudioEncoders);
  f(PartKind::kVae, "vae", kVaes);
}

}  // namespace

std::optional<ComponentFacts> component_facts(const std::string& config_path) {
  const nlohmann::json config = read_json_file(config_path);
  std::optional<ComponentFacts> facts;
  for_each_kind([&](PartKind, const char* part, const auto& rows) {
    const auto* row = facts ? nullptr : row_of(rows, config, config_path);
    if (!row) return;
    const auto model = row->open(config_path);
    facts = {part, row->class_name, model->tensors(), ""};
    if constexpr (requires { model->description(); }) facts->description = model->description();
  });
  return facts;
}

namespace {

template <class Model>
ComponentFacts facts_of_tensors(const char* part, const ComponentRow<Model>& row,
                                const TensorFile& file) {
  ComponentFacts facts{part, row.class_name, {}, ""};
  try {
    const auto model = row.of_tensors(file);
    facts.description = row.describe(file);
    facts.tensors = model->tensors();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kModel) throw;
    facts.description = error.what();
  }
  return facts;
}

// Appends what a file holds of one kind of components.
template <class Model>
void append_held(const char* part, ComponentRows<Model> rows, const std::string& path,
                 const PartNames& names, std::vector<ComponentFacts>& out) {
  std::vector<FoundPart<Model>> found = find_parts(rows, names);
  const fs::path folder = fs::is_directory(path) ? fs::path(path) : fs::path(path).parent_path();
  const std::string config = (folder / "config.json").string();
  if (found.empty() && fs::exists(config)) found.push_back({});  // which may know the file
  for (const FoundPart<Model>& each : found) {
    const TensorFile file = open_weights(path, [&](const auto&) { return each.names(); });
    std::optional<ComponentFacts> facts;
    const bool fitted = fitting(rows, config, file) != nullptr;
    if (fitted)
      facts = component_facts(config);
    else if (each.row)
      facts = facts_of_tensors(part, *each.row, file);
    if (!facts) continue;
    facts->prefix = each.prefix;
    if (!fitted)
      for (const auto& row : rows)
        if (row.class_name != facts->class_name && row.holds(file))
          facts->other_classes.emplace_back(row.class_name);
    out.push_back(std::move(*facts));
  }
}

}  // namespace

std::vector<ComponentFacts> held_components(const std::string& path) {
  const PartNames names(path);
  std::vector<ComponentFacts> out;
  for_each_kind([&](PartKind, const char* part, const auto& rows) {
    append_held(part, rows, path, names, out);
  });
  return out;
}

TensorFile open_part_weights(PartKind kind, const std::string& path, const char* class_name) {
  std::optional<TensorFile> file;
  for_each_kind([&](PartKind of, const char*, const auto& rows) {
    if (of == kind) file = open_found(rows, path, class_name ? class_name : "").second;
  });
  return std::move(*file);
}

std::string known_components() {
  std::string all;
  for_each_kind([&](PartKind, const char*, const auto& rows) {
    all += (all.empty() ? "" : ", ") + legal_classes(rows);
  });
  return all;
}

}  // namespace weft
