// weft inspect: shows what a model folder, a weights file, a config or a finished result holds.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/commands.h"
#include "apps/inspect/file_use.h"
#include "apps/inspect/language_memory.h"
#include "apps/inspect/memory.h"
#include "apps/model_folder.h"
#include "io/json.h"
#include "io/media/media_probe.h"
#include "io/part_file.h"
#include "io/text/utf8.h"
#include "io/weights/weights_file.h"
#include "models/registry.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

template <class Specs>
void add_counts(Json& object, const Specs& tensors, bool every_tensor) {
  int64_t parameters = 0;
  for (const auto& tensor : tensors) {
    int64_t count = 1;
    for (const int64_t extent : tensor.shape) count *= extent;
    parameters += count;
    if (every_tensor) object["list"].push_back({{"name", tensor.name}, {"shape", tensor.shape}});
  }
  object["parameters"] = parameters;
  object["tensors"] = tensors.size();
}

// Parameter and tensor counts, and the tensors themselves, from a component's config alone.
Json inspect_config(const std::string& path, bool every_tensor) {
  const nlohmann::json config = read_json_file(path);
  Json object{{"file", path_text(path)}};
  const std::string type = json_string_or(config, "model_type", path, "");
  if (const std::optional<ComponentFacts> facts = component_facts(path)) {
    object["class"] = facts->class_name;
    add_counts(object, facts->tensors, every_tensor);
    if (!facts->description.empty()) object["config"] = facts->description;
    if (facts->part == "transformer")
      add_licence(known_transformer(facts->class_name, *open_transformer(path)), object);
  } else if (is_decoder_type(type)) {
    object["class"] = type == "qwen3" ? "Qwen3ForCausalLM" : "Qwen2ForCausalLM";
    add_counts(object, decoder_tensors(DecoderConfig::from_json_file(path)), every_tensor);
  } else {
    throw Error(ErrorKind::kModel, path + ": not the config of a model known here; legal: " +
                                       known_components() + ", or a " + decoder_families());
  }
  return object;
}

Json inspect_weights(const std::string& path, bool every_tensor) {
  const TensorFile file = open_weights(path);
  Json object{{"file", path_text(path)},
              {"format", file.format()},
              {"files", file.files()},
              {"bytes", file.bytes()},
              {"header_sha256", file.header_hash()},
              {"metadata", file.metadata()},
              {"tensors", file.names().size()}};
  int64_t parameters = 0;
  std::map<std::string, int64_t> dtypes;
  Json list = Json::array();
  for (const std::string& name : file.names()) {
    const TensorView view = file.describe(name);
    const std::string type = file.stored_type(name);
    parameters += view.count();
    ++dtypes[type];
    if (every_tensor)
      list.push_back({{"name", name},
                      {"dtype", type},
                      {"shape", std::vector<int64_t>(view.shape().begin(), view.shape().end())}});
  }
  object["parameters"] = parameters;
  object["dtypes"] = dtypes;
  add_use(path, file, object);
  if (every_tensor) object["list"] = list;
  return object;
}

Json inspect_model(const std::string& path, bool every_tensor) {
  const ModelDirectory model = open_model_directory(path);
  Json object{{"model", path}, {"class", model.family->class_name}, {"experts", model.experts()}};
  const DefaultSettings& d = model.defaults;
  object["defaults"] = {{"name", d.name},         {"origin", d.origin},
                        {"width", d.width},       {"height", d.height},
                        {"num_frames", d.frames}, {"fps", d.fps},
                        {"steps", d.steps},       {"guidance_scale", d.guidance_scale}};
  if (d.guidance_scale_2) object["defaults"]["guidance_scale_2"] = *d.guidance_scale_2;
  if (d.flow_shift) object["defaults"]["flow_shift"] = *d.flow_shift;
  add_licence(model.known(), object);
  if (model.boundary_ratio) object["boundary_ratio"] = *model.boundary_ratio;
  if (model.pictures.reads_any())
    object["pictures"] = {{"least", model.pictures.least}, {"most", model.pictures.most}};
  for (const std::string& part : model.weights_folders())
    object["components"][fs::path(part).filename().string()] =
        inspect_config(part + "/config.json", every_tensor);
  return object;
}

// Looks at a folder in the original layout of a model: the transformer at its root, and other parts
// in folders or in files beside it. nullopt where it is no such folder.
std::optional<Json> inspect_original(const std::string& path, bool every_tensor) {
  const auto config_of = [](const fs::path& folder) {
    const std::string config = (folder / "config.json").string();
    return fs::is_regular_file(config) && component_facts(config) ? config : std::string();
  };
  std::map<std::string, Json> parts;
  std::set<std::string> unread;
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    if (entry.path().extension() == ".pth") unread.insert(entry.path().filename().string());
    if (!entry.is_directory()) continue;
    if (const std::string config = config_of(entry.path()); !config.empty())
      parts[entry.path().filename().string()] = inspect_config(config, every_tensor);
  }
  const std::string root = config_of(path);
  if (root.empty() || (parts.empty() && unread.empty())) return std::nullopt;
  parts["transformer"] = inspect_config(root, every_tensor);
  return Json{{"folder", path_text(path)},
              {"components", parts},
              {"not_read", std::vector(unread.begin(), unread.end())}};
}

// A folder of weights, with what its config.json says of them.
Json inspect_component(const std::string& path, bool every_tensor) {
  Json object = inspect_weights(path, every_tensor);
  const std::string config = path + "/config.json";
  if (object.contains("class") || !fs::is_regular_file(config)) return object;
  if (const std::optional<ComponentFacts> facts = component_facts(config)) {
    object["class"] = facts->class_name;
    if (!facts->description.empty()) object["config"] = facts->description;
  }
  return object;
}

Json inspect_media(const std::string& path) {
  const MediaInfo info = probe_media(path);
  Json metadata = Json::object();
  for (const auto& [key, value] : info.metadata) {
    // The value of our own key is JSON inside a string; it is shown as JSON.
    const auto parsed = nlohmann::json::parse(key == "weft" ? value : "", nullptr, false);
    metadata[key] = parsed.is_discarded() ? Json(value) : Json(parsed);
  }
  return {{"file", path_text(path)}, {"container", info.container}, {"codec", info.codec},
          {"width", info.width},     {"height", info.height},       {"frames", info.frames},
          {"fps", info.fps},         {"seconds", info.seconds},     {"metadata", metadata}};
}

Json inspect(const std::string& path, bool every_tensor) {
  if (fs::is_directory(path)) {
    if (fs::exists(path + "/model_index.json")) return inspect_model(path, every_tensor);
    if (LanguageFolder::recognise(path)) return inspect_language(path);
    if (const std::optional<Json> folder = inspect_original(path, every_tensor)) return *folder;
    return inspect_component(path, every_tensor);
  }
  const std::string extension = file_ending(path);
  for (const char* media : {".mp4", ".mov", ".webm", ".mkv", ".gif", ".png"})
    if (extension == media) return inspect_media(path);
  if (path.ends_with(".safetensors") || path.ends_with(".safetensors.index.json") ||
      extension == ".gguf")
    return inspect_weights(path, every_tensor);
  if (fs::path(path).filename() == "model_index.json")
    return inspect_model(
        fs::path(path).parent_path().empty() ? "." : fs::path(path).parent_path().string(),
        every_tensor);
  if (extension == ".json") return inspect_config(path, every_tensor);
  throw Error(ErrorKind::kModel,
              path +
                  ": legal: a model folder, .safetensors, .gguf, a config .json, .mp4 .webm "
                  ".gif .png");
}

void print(const nlohmann::json& value, const std::string& indent) {
  for (const auto& [key, item] : value.items()) {
    if (item.is_structured() && !item.empty()) {
      std::printf("%s%s:\n", indent.c_str(), printable(key).c_str());
      print(item, indent + "  ");
    } else {
      const std::string text = item.is_string() ? item.get<std::string>() : item.dump();
      std::printf("%s%s: %s\n", indent.c_str(), printable(key).c_str(),
                  printable(text, Newlines::kKept).c_str());
    }
  }
}

}  // namespace

int run_inspect(const Flags& flags) {
  if (flags.operands().empty() && flags.given("memory") && flags.given("transformer")) {
    inspect_memory(flags, "");
    return 0;
  }
  if (flags.operands().empty())
    throw Error(ErrorKind::kUsage, "weft inspect needs at least one file or folder");
  for (const std::string& operand : flags.operands()) {
    const std::string path = search_model(operand);
    if (!fs::exists(path)) {
      const std::string advice = download_advice(operand);
      throw Error(ErrorKind::kModel, operand + ": no such file or folder, and " +
                                         places_searched() + (advice.empty() ? "" : "; " + advice));
    }
    if (flags.given("memory")) {
      const bool language = LanguageFolder::recognise(path);
      for (const char* flag :
           {"device", "weights", "text-encoder-weights", "attention", "resident-layers"})
        if (language && flags.given(flag))
          throw Error(ErrorKind::kUsage, flags.label(flag) +
                                             " is given, but the memory of a language model is "
                                             "predicted for whole weights on a CPU alone");
      language ? inspect_language_memory(flags, path) : inspect_memory(flags, path);
      continue;
    }
    const Json object = inspect(path, flags.on("verbose-tensors"));
    if (flags.on("json"))
      std::printf("%s\n", object.dump().c_str());
    else
      print(object, "");
  }
  return 0;
}

}  // namespace weft
