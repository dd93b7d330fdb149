#include "models/files/part_files.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <span>

#include "models/files/components.h"
#include "models/files/tokenizer_files.h"
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

[[noreturn]] void refuse_part(const std::string& why) { throw Error(ErrorKind::kUsage, why); }

// A file as its flag gives it; the path is "" where there is none.
struct Given {
  const char* flag;
  std::string path;
};

std::string quoted(const Given& given) {
  return std::string(given.flag) + " is '" + given.path + "'";
}

// Returns whether a file holds a text encoder of the class.
bool holds_text_encoder(const PartNames& names, const std::string& class_name) {
  const ComponentRow<TextEncoderModel>* row = find_part(kTextEncoders, names, class_name).row;
  return row && row->class_name == class_name;
}

// Sets the two text encoders of a model, each by what its file holds. A file may hold both.
void place_encoders(std::span<const Given> given, ModelDirectory& model) {
  const ModelFamily& family = *model.family;
  const Given* placed[2] = {};  // of the rows, of the vector
  std::string* const paths[2] = {&model.text_encoder, &model.pooled_encoder};
  const Given* both = nullptr;
  for (const Given& each : given) {
    if (each.path.empty()) continue;
    const PartNames names(each.path);
    const bool pooled = holds_text_encoder(names, family.pooled_encoder_class);
    if (pooled && holds_text_encoder(names, family.text_encoder_class)) {
      both = &each;
      continue;
    }
    const Given*& place = placed[pooled];
    if (place)
      refuse_part(quoted(*place) + " and " + quoted(each) + ", which are " +
                  (pooled ? "both" : "neither") + " a " + family.pooled_encoder_class +
                  " (legal: a " + family.text_encoder_class + " and a " +
                  family.pooled_encoder_class + ", in either order)");
    place = &each;
    *paths[pooled] = each.path;
  }
  for (int i = 0; i < 2; ++i)
    if (both && !placed[i]) *paths[i] = both->path;
}

// Sets the two tokenizers of a model, each by what its file holds. A folder may hold both.
void place_tokenizers(std::span<const Given> given, ModelDirectory& model) {
  const ModelFamily& family = *model.family;
  const Given* placed[2] = {};  // of the rows, of the vector
  std::string* const paths[2] = {&model.tokenizer, &model.pooled_tokenizer};
  const Given* both = nullptr;
  for (const Given& each : given) {
    if (each.path.empty()) continue;
    const bool text = is_tokenizer(each.path, family.text.kind),
               pooled = is_tokenizer(each.path, family.pooled.kind);
    if (!text && !pooled)
      refuse_part(quoted(each) + ", which is no tokenizer of a " + family.class_name +
                  " (legal: " + files_of(family.text.kind) + "; " + files_of(family.pooled.kind) +
                  "; a folder or a weights file that holds one)");
    if (text && pooled) {
      both = &each;
      continue;
    }
    const Given*& place = placed[pooled];
    if (place)
      refuse_part(
          quoted(*place) + " and " + quoted(each) + ", which are two tokenizers of one kind (" +
          files_of(pooled ? family.pooled.kind : family.text.kind) + "); the other one is " +
          files_of(pooled ? family.text.kind : family.pooled.kind));
    place = &each;
    *paths[pooled] = each.path;
  }
  for (int i = 0; i < 2; ++i)
    if (both && !placed[i]) *paths[i] = both->path;
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
                                  {&vae, &model.vae},
                                  {&image_encoder, &model.image_encoder}})
    if (!own->empty()) *path = *own;
  const Given encoders[] = {{"--text-encoder", text_encoder}, {"--text-encoder-2", text_encoder_2}},
              tokenizers[] = {{"--tokenizer", tokenizer}, {"--tokenizer-2", tokenizer_2}};
  if (model.family->pooled.encoder) {
    place_encoders(encoders, model);
    place_tokenizers(tokenizers, model);
    return;
  }
  for (const Given& second : {encoders[1], tokenizers[1]})
    if (!second.path.empty())
      refuse_part(quoted(second) + ", but a " + model.family->class_name + " has one text encoder");
  if (!text_encoder.empty()) model.text_encoder = text_encoder;
  if (!tokenizer.empty()) model.tokenizer = tokenizer;
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
