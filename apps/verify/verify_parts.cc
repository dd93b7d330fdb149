// The parts of a case's model, which case.json names or the case's own folder holds.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/command_line/printable.h"
#include "apps/verify/verify_run.h"
#include "engine/parts/open_model.h"
#include "io/nearest.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

// Parts that a pipeline reads in the model's own folder alone, because no flag replaces them.
constexpr const char* kUnflaggedParts[] = {"audio_encoder", "language", "scheduler"};

// Throws where a case names a part that is not among those with flags, or, in stages of single
// parts, among the others.
void check_part(const std::string& what, const std::string& name, bool others) {
  std::vector<std::string> legal;
  for (const auto& [flagged, path] : kParts) legal.emplace_back(flagged);
  if (others) legal.insert(legal.end(), std::begin(kUnflaggedParts), std::end(kUnflaggedParts));
  if (std::ranges::count(legal, name)) return;
  throw Error(ErrorKind::kModel,
              what + ": model names the part '" + name + "' (legal: " + listed(legal) + ")");
}

// Returns whether a folder has weights, or for a part without weights any file.
bool holds_part(const std::string& folder, const std::string& name) {
  const bool weights = !name.starts_with("tokenizer") && name != "scheduler";
  std::error_code fault;
  return std::ranges::any_of(fs::directory_iterator(folder, fault), [&](const auto& entry) {
    const fs::path extension = entry.path().extension();
    return !weights || extension == ".safetensors" || extension == ".gguf";
  });
}

// The LoRA files of the case.
std::vector<Lora> loras_of(const Case& c) {
  std::vector<Lora> loras;
  if (!json_has(c.spec, "lora")) return loras;
  const std::string what = c.file("case.json");
  for (const nlohmann::json& each : c.spec.at("lora"))
    loras.push_back({.file = c.file(json_string(each, "file", what)),
                     .scale = json_number(each, "scale", what)});
  return loras;
}

void warn(const Case& c, const std::vector<std::string>& notes) {
  if (c.placement.rank() > 0) return;
  for (const std::string& note : notes)
    std::fprintf(stderr, "weft: warning: %s\n", printable(note).c_str());
}

}  // namespace

std::map<std::string, std::string> parts_named_in(const std::string& folder,
                                                  const nlohmann::json& spec) {
  std::map<std::string, std::string> parts;
  if (!json_has(spec, "model")) return parts;
  const std::string what = folder + "/case.json";
  const nlohmann::json& named = spec.at("model");
  if (!named.is_object())
    throw Error(ErrorKind::kModel, what + ": model = " + named.dump() +
                                       " (legal: an object from parts to paths from the case)");
  for (const auto& [name, value] : named.items()) {
    check_part(what, name, true);
    const std::string given = json_string(named, name, what + ": model");
    const std::string path = folder + "/" + given;
    std::error_code fault;
    const fs::file_type type = fs::status(path, fault).type();
    const char* wrong = nullptr;
    if (type != fs::file_type::regular && type != fs::file_type::directory)
      wrong = ", and there is no such file or folder";
    else if (type == fs::file_type::directory && !holds_part(path, name))
      wrong = ", a folder without files of this part";
    if (wrong)
      throw Error(ErrorKind::kModel, what + ": model." + name + " is '" + given + "'" + wrong);
    parts[name] = path;
  }
  return parts;
}

std::string Case::part(const std::string& name) const {
  const auto named = named_parts.find(name);
  return named == named_parts.end() ? file("model/" + name) : named->second;
}

std::string Case::part_file(const std::string& name, const std::string& file_name) const {
  const std::string own = file("model/" + name + "/" + file_name);
  const auto named = named_parts.find(name);
  if (named == named_parts.end()) return own;
  std::error_code fault;
  const fs::path path = named->second;
  const fs::path there = (fs::is_directory(path, fault) ? path : path.parent_path()) / file_name;
  return !fs::exists(there, fault) && fs::exists(own, fault) ? own : there.string();
}

std::string Case::only_part(const std::string& name) const {
  return named_parts.contains(name) ? named_parts.at(name) : file("model");
}

std::shared_ptr<const TensorFile> merge_loras(const Case& c,
                                              std::shared_ptr<const TensorFile> weights,
                                              const TransformerModel* transformer,
                                              const TextEncoderModel* text) {
  const std::vector<Lora> loras = loras_of(c);
  if (loras.empty()) return weights;
  std::vector<std::string> notes;
  std::vector<TextEncoderWeights> encoders;
  if (text) encoders.push_back({*text, weights});
  change_text_encoders(encoders, loras, notes);
  if (transformer)
    weights = std::make_shared<const TensorFile>(
        with_loras(std::move(weights), *transformer, loras, notes));
  warn(c, notes);
  return weights;
}

std::shared_ptr<const OpenModel> open_model(const Case& c) {
  const std::string what = c.file("case.json");
  for (const auto& [name, path] : c.named_parts) check_part(what, name, false);
  PartFiles files;
  for (const auto& [name, path] : kParts)
    if (c.named_parts.contains(name)) files.*path = c.named_parts.at(name);
  try {
    const auto model = std::make_shared<const OpenModel>(c.file("model"), loras_of(c), files);
    warn(c, model->notes);
    constexpr const char* kArea = "reference_area";
    if (!c.spec.contains(kArea)) return model;
    ModelDirectory directory = model->directory;
    directory.pictures.reference_area = c.integer(kArea, IntRange{});
    return std::make_shared<const OpenModel>(*model, std::move(directory));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUsage || !files.any()) throw;
    throw Error(ErrorKind::kModel, what + ": model: " + error.what());
  }
}

}  // namespace weft
