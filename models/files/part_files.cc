#include "models/files/part_files.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "models/registry.h"

namespace weft {

namespace {

// Returns whether a file's name has this word, or the word before "noise".
bool is_named(const std::string& path, const std::string& word) {
  std::string name = std::filesystem::path(path).filename().string();
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto letter = [&](size_t at) {
    return at < name.size() && std::isalpha(static_cast<unsigned char>(name[at]));
  };
  for (size_t at = name.find(word); at != std::string::npos; at = name.find(word, at + 1)) {
    const size_t end = at + word.size();
    if (!(at > 0 && letter(at - 1)) && (!letter(end) || name.compare(end, 5, "noise") == 0))
      return true;
  }
  return false;
}

}  // namespace

std::string folder_name(const std::string& path) {
  std::string name = std::filesystem::path(path).filename().string();
  if (name.empty()) name = std::filesystem::path(path).parent_path().filename().string();
  for (const std::string extension : {".safetensors", ".gguf"})
    if (name.ends_with(extension)) name.resize(name.size() - extension.size());
  return name;
}

void PartFiles::replace_in(ModelDirectory& model) const {
  for (const auto& [own, path] : {std::pair{&transformer, &model.transformer},
                                  {&transformer_2, &model.transformer_2},
                                  {&text_encoder, &model.text_encoder},
                                  {&tokenizer, &model.tokenizer},
                                  {&vae, &model.vae},
                                  {&image_encoder, &model.image_encoder}})
    if (!own->empty()) *path = *own;
}

void PartFiles::note_names(ModelDirectory& model) const {
  const bool two = model.experts() == 2;
  for (const auto& [flag, path, own, other] :
       {std::tuple{"--transformer", &transformer, "high", "low"},
        {"--transformer-2", &transformer_2, "low", "high"}}) {
    if (path->empty()) continue;
    const std::string start = std::string(flag) + " is " + *path + ", whose name says ";
    if (is_named(*path, other) && !is_named(*path, own) && two)
      model.notes.push_back(start + other + " noise, and " + flag + " is the expert of " + own +
                            " noise");
    else if (!two && (is_named(*path, own) || is_named(*path, other)))
      model.notes.push_back(start +
                            "that it is one of two experts; the one of high noise is "
                            "--transformer, the one of low noise --transformer-2");
  }
}

std::string to_string(const PartFiles& files) {
  std::string text;
  for (const auto& [name, path] : kParts)
    if (!(files.*path).empty())
      text += (text.empty() ? "" : ", ") + std::string(name) + " is '" + files.*path + "'";
  return text.empty() ? "none" : text;
}

}  // namespace weft
