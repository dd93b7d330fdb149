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
void try_load(const TransformerModel& model, Stream& stream, const TensorFile& file) {
  model.load(stream, file, {});
}
void try_load(const TextEncoderModel& model, Stream& stream, const TensorFile& file) {
  model.load(stream, file, DType::kF32, {});
}
void try_load(const ImageEncoderModel& model, Stream& stream, const TensorFile& file) {
  model.load(stream, file, DType::kF32, {});
}
void try_load(const AudioEncoderModel& model, Stream& stream, const TensorFile& file) {
  model.load(stream, file, DType::kF32, {});
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
std::shared_ptr<const Model> open_component(ComponentRows<Model> rows, const std::string& path) {
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

template <class Model>
std::shared_ptr<const Model> open_part(ComponentRows<Model> rows, const std::string& weights,
                                       const std::string& folder_config,
                                       const std::string& class_name) {
  const auto [found, file] = open_found(rows, weights, class_name);
  for (const std::string& config : {config_beside(file), folder_config})
    if (std::shared_ptr<const Model> model = fitting(rows, config, file)) return model;
  const ComponentRow<Model>* row = found.row;
  require(row, weights + ": " + holdings(weights) + " (legal here: " +
                   (class_name.empty() ? legal_classes(rows) : class_name) + ")");
  require(!folder_config.empty() || class_name.empty() || class_name == row->class_name,
          weights + ": holds a " + row->class_name + ", and this model's is a " + class_name);
  return row->of_tensors(file);
}

template std::shared_ptr<const TransformerModel> open_component(ComponentRows<TransformerModel>,
                                                                const std::string&);
template std::shared_ptr<const TextEncoderModel> open_component(ComponentRows<TextEncoderModel>,
                                                                const std::string&);
template std::shared_ptr<const ImageEncoderModel> open_component(ComponentRows<ImageEncoderModel>,
                                                                 const std::string&);
template std::shared_ptr<const VaeModel> open_component(ComponentRows<VaeModel>,
                                                        const std::string&);
template std::shared_ptr<const AudioEncoderModel> open_component(ComponentRows<AudioEncoderModel>,
                                                                 const std::string&);
template std::shared_ptr<const TransformerModel> open_part(ComponentRows<TransformerModel>,
                                                           const std::string&, const std::string&,
                                                           const std::string&);
template std::shared_ptr<const TextEncoderModel> open_part(ComponentRows<TextEncoderModel>,
                                                           const std::string&, const std::string&,
                                                           const std::string&);
template std::shared_ptr<const ImageEncoderModel> open_part(ComponentRows<ImageEncoderModel>,
                                                            const std::string&, const std::string&,
                                                            const std::string&);
template std::shared_ptr<const VaeModel> open_part(ComponentRows<VaeModel>, const std::string&,
                                                   const std::string&, const std::string&);

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
  if (auto model = fitting(kTransformers, config_beside(file), file)) return model;
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

namespace {

template <class Model>
ComponentFacts facts_of_tensors(const char* part, const ComponentRow<Model>& row,
                                const TensorFile& file) {
  ComponentFacts facts{part, row.class_name, {}, ""};
  try {
    const auto model = row.of_tensors(file);
    if constexpr (requires { model->description(); })
      facts.description = model->description();
    else
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
    if (fitting(rows, config, file))
      facts = component_facts(config);
    else if (each.row)
      facts = facts_of_tensors(part, *each.row, file);
    if (!facts) continue;
    facts->prefix = each.prefix;
    out.push_back(std::move(*facts));
  }
}

}  // namespace

std::vector<ComponentFacts> held_components(const std::string& path) {
  const PartNames names(path);
  std::vector<ComponentFacts> out;
  append_held("transformer", kTransformers, path, names, out);
  append_held("text_encoder", kTextEncoders, path, names, out);
  append_held("image_encoder", kImageEncoders, path, names, out);
  append_held("audio_encoder", kAudioEncoders, path, names, out);
  append_held("vae", kVaes, path, names, out);
  return out;
}

TensorFile open_part_weights(PartKind kind, const std::string& path, const char* class_name) {
  const auto open = [&](const auto& rows) {
    return open_found(rows, path, class_name ? class_name : "").second;
  };
  switch (kind) {
    case PartKind::kTransformer:
      return open(kTransformers);
    case PartKind::kTextEncoder:
      return open(kTextEncoders);
    case PartKind::kImageEncoder:
      return open(kImageEncoders);
    case PartKind::kAudioEncoder:
      return open(kAudioEncoders);
    case PartKind::kVae:
      break;
  }
  return open(kVaes);
}

std::string known_components() {
  return legal_classes(kTransformers) + ", " + legal_classes(kTextEncoders) + ", " +
         legal_classes(kImageEncoders) + ", " + legal_classes(kAudioEncoders) + ", " +
         legal_classes(kVaes);
}

}  // namespace weft
