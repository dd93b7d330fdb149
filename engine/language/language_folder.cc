#include "engine/language/language_folder.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/language/language.h"
#include "io/json.h"

namespace weft {

namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& path, const std::string& found) {
  throw Error(ErrorKind::kModel, path + ": " + found + "; legal: the folder of a " +
                                     decoder_families() +
                                     " with config.json, tokenizer.json and safetensors");
}

void check_folder(const std::string& path) {
  if (!fs::is_directory(path))
    refuse(path, fs::exists(path) ? "is a file" : "no such language model folder");
  if (!fs::exists(path + "/config.json"))
    refuse(path, fs::exists(path + "/model_index.json")
                     ? "is a video model's folder (model_index.json), which weft generate takes"
                     : "has no config.json");
  const nlohmann::json config = read_json_file(path + "/config.json");
  if (!config.is_object()) refuse(path, "its config.json holds no object");
  const std::string type = json_string_or(config, "model_type", path + "/config.json", "");
  const std::string name = json_string_or(config, "_class_name", path + "/config.json", "");
  if (type.empty())
    refuse(path, "its config.json is of " + (name.empty() ? "an unnamed model" : "a " + name));
  if (!is_decoder_type(type)) refuse(path, "its config.json has model_type \"" + type + "\"");
  if (!fs::exists(path + "/tokenizer.json")) refuse(path, "has no tokenizer.json");
}

}  // namespace

bool LanguageFolder::recognise(const std::string& path) {
  if (!fs::exists(path + "/config.json")) return false;
  const nlohmann::json config = read_json_file(path + "/config.json");
  if (!config.is_object()) return false;
  const std::string type = json_string_or(config, "model_type", path + "/config.json", "");
  return is_decoder_type(type);
}

LanguageFolder LanguageFolder::open(const std::string& path) {
  check_folder(path);
  LanguageFolder folder{path, LanguageModel::read_config(path),
                        ByteBpeTokenizer::open(path + "/tokenizer.json"),
                        LanguageModel::end_ids(path)};
  if (folder.tokenizer.size() > folder.config.vocab)
    throw Error(ErrorKind::kModel, path + ": tokenizer.json has ids up to " +
                                       std::to_string(folder.tokenizer.size() - 1) +
                                       ", config.json a vocab_size of " +
                                       std::to_string(folder.config.vocab));
  return folder;
}

std::vector<int32_t> LanguageFolder::chat(const std::optional<std::string>& system,
                                          const std::string& user, Thinking thinking) const {
  chat_end_ids();  // throws where the model has no token that ends a turn
  std::vector<ChatTurn> turns;
  if (system) turns.push_back({ChatRole::kSystem, *system});
  turns.push_back({ChatRole::kUser, user});
  if (!tokenizer.id_of("<think>")) thinking = Thinking::kOn;
  return tokenizer.encode(chatml_prompt(turns, thinking));
}

std::vector<int32_t> LanguageFolder::chat_end_ids() const {
  const auto id = tokenizer.id_of(kEndOfTurn);
  if (!id)
    throw Error(ErrorKind::kModel, path + ": tokenizer.json has no token " + kEndOfTurn +
                                       ", which ends a turn: this model does not chat");
  std::vector<int32_t> ids = end_ids;
  if (std::ranges::find(ids, *id) == ids.end()) ids.push_back(*id);
  return ids;
}

}  // namespace weft
