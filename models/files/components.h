#pragma once
// The tables of the classes of components, and how one of them is found and opened: by a
// config.json, or by the tensors of a file. models/registry.h has what others need of it.
#include <algorithm>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "io/weights/tensor_names.h"
#include "io/weights/weights_file.h"
#include "models/encoder.h"
#include "models/files/part_prefix.h"
#include "models/transformer.h"
#include "models/vae.h"

namespace weft {

// A class of components.
template <class Model>
struct ComponentRow {
  const char* class_name;
  const char* name;  // the _class_name or model_type of its config.json
  std::shared_ptr<const Model> (*open)(const std::string& path);
  std::shared_ptr<const Model> (*of_tensors)(const TensorFile& file);
  // Returns whether a file with these names holds the model.
  bool (*holds)(const TensorNames& names);
  // The configuration of such a file in one line; null where tensors do not tell it.
  std::string (*describe)(const TensorFile& file) = nullptr;
  // Returns whether a config.json without a name is of this class; null: none is.
  bool (*is_unnamed)(const nlohmann::json& config) = nullptr;

  bool is(const std::string& named, const nlohmann::json& config) const {
    return named.empty() && is_unnamed ? is_unnamed(config) : named == name;
  }
};

template <class Model>
struct ComponentRows : std::span<const ComponentRow<Model>> {
  using std::span<const ComponentRow<Model>>::span;

  // Opens the component that a config.json describes.
  std::shared_ptr<const Model> open(const std::string& path) const;
  // Opens the component of a weights file. Its configuration is that beside the weights or
  // `folder_config`, if one fits, or else follows from the tensors.
  std::shared_ptr<const Model> open_part(const std::string& weights,
                                         const std::string& folder_config,
                                         const std::string& class_name) const;
};

extern const ComponentRows<TransformerModel> kTransformers;
extern const ComponentRows<TextEncoderModel> kTextEncoders;
extern const ComponentRows<ImageEncoderModel> kImageEncoders;
extern const ComponentRows<AudioEncoderModel> kAudioEncoders;
extern const ComponentRows<VaeModel> kVaes;

inline constexpr const char* kSpeechClass = "WanModel_S2V";

// Returns the config's _class_name, else its model_type, else "".
std::string class_of(const nlohmann::json& config, const std::string& path);

// Says what components a file holds, for messages: "holds the vae AutoencoderKL".
std::string holdings(const std::string& path);

// "WanTransformer3DModel, ...".
template <class Model>
std::string legal_classes(ComponentRows<Model> rows) {
  std::string legal;
  for (const auto& row : rows) legal += (legal.empty() ? "" : ", ") + std::string(row.class_name);
  return legal;
}

// Returns the row of a config, or null.
template <class Model>
const ComponentRow<Model>* row_of(ComponentRows<Model> rows, const nlohmann::json& config,
                                  const std::string& path) {
  const std::string name = class_of(config, path);
  for (const auto& row : rows)
    if (row.is(name, config)) return &row;
  return nullptr;
}

// Returns the row of a file's component, that of `class_name` before others; null where no row
// knows the file.
template <class Model>
const ComponentRow<Model>* row_of(ComponentRows<Model> rows, const TensorNames& names,
                                  const std::string& class_name = "") {
  const ComponentRow<Model>* found = nullptr;
  for (const auto& row : rows)
    if (row.holds(names) && (!found || class_name == row.class_name)) found = &row;
  return found;
}

// A component in a file, and the prefix of its names there.
template <class Model>
struct FoundPart {
  const ComponentRow<Model>* row = nullptr;
  std::string prefix;

  // Its own names. Of a file without a row's component all tensors keep theirs.
  TensorFile::Renaming names() const { return row ? PartNames::under(prefix) : nullptr; }
};

// Finds the components of a kind, those with the shortest prefixes first.
template <class Model>
std::vector<FoundPart<Model>> find_parts(ComponentRows<Model> rows, const PartNames& names,
                                         const std::string& class_name = "") {
  std::vector<FoundPart<Model>> found;
  for (const std::string& prefix : names.prefixes()) {
    const auto same = [&](const auto& part) { return PartNames::same_part(part.prefix, prefix); };
    if (std::ranges::any_of(found, same)) continue;
    if (const auto* row = row_of(rows, TensorNames(names.sorted(), prefix), class_name))
      found.push_back({row, prefix});
  }
  return found;
}

// The component of this class, or else the first of the kind; without a row where there is none.
template <class Model>
FoundPart<Model> find_part(ComponentRows<Model> rows, const PartNames& names,
                           const std::string& class_name) {
  const std::vector<FoundPart<Model>> parts = find_parts(rows, names, class_name);
  for (const FoundPart<Model>& part : parts)
    if (class_name == part.row->class_name) return part;
  return parts.empty() ? FoundPart<Model>{} : parts.front();
}

// Finds a component as find_part() does, and opens its tensors.
template <class Model>
std::pair<FoundPart<Model>, TensorFile> open_found(ComponentRows<Model> rows,
                                                   const std::string& path,
                                                   const std::string& class_name) {
  FoundPart<Model> part;
  TensorFile file = open_weights(path, [&](const std::vector<std::string>& names) {
    part = find_part(rows, PartNames(names), class_name);
    return part.names();
  });
  return {part, std::move(file)};
}

}  // namespace weft
