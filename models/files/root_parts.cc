#include "models/files/root_parts.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <vector>

#include "models/files/tokenizer_files.h"
#include "models/registry.h"

namespace weft {

namespace {

namespace fs = std::filesystem;

// The only weights file in the root whose name has the word; "" where there is none.
std::string file_with(const std::string& folder, const std::string& word) {
  std::vector<std::string> found;
  std::error_code failed;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, failed)) {
    std::string name = entry.path().filename().string();
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    const bool weights = name.ends_with(".safetensors") || name.ends_with(".gguf");
    if (weights && name.find(word) != std::string::npos) found.push_back(entry.path().string());
  }
  std::ranges::sort(found);
  if (found.size() > 1)
    throw Error(ErrorKind::kModel,
                folder + ": " + fs::path(found[0]).filename().string() + " and " +
                    fs::path(found[1]).filename().string() + " both look like the " +
                    (word == "vae" ? "VAE; legal: one of them, or --vae FILE"
                                   : "text encoder; legal: one of them, or --text-encoder FILE"));
  return found.empty() ? "" : found.front();
}

std::string folder_in(const std::string& path, const char* name) {
  const std::string folder = path + "/" + name;
  return fs::is_directory(folder) ? folder : "";
}

}  // namespace

ModelDirectory root_parts(const std::string& path, const ModelFamily& family) {
  ModelDirectory model;
  model.path = model.transformer = path;
  model.family = &family;
  model.vae = file_with(path, "vae");
  model.text_encoder = file_with(path, "t5");
  model.tokenizer = folder_in(path, family.root->tokenizer);
  if (model.tokenizer.empty() && !model.text_encoder.empty())
    model.tokenizer = find_tokenizer(model.text_encoder, family.text.kind, family.text.tokenizer);
  model.audio_encoder = folder_in(path, family.root->audio_encoder);
  return model;
}

void check_root_parts(const ModelDirectory& model) {
  const RootLayout& root = *model.family->root;
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::kModel, model.path + ": " + why);
  };
  const auto refuse_pickle = [&](const char* pickle, const std::string& part, const char* repack,
                                 const char* flag) {
    const std::string there =
        fs::exists(model.path + "/" + pickle)
            ? std::string(pickle) + " is not read, because loading a pickle runs code"
            : "the folder has no " + part;
    refuse(there + "; legal: the " + part + " as safetensors beside it, such as " + repack +
           " of Comfy-Org/Wan_2.1_ComfyUI_repackaged, or " + flag + " FILE");
  };
  if (model.vae.empty()) refuse_pickle(root.vae_pickle, "VAE", "wan_2.1_vae.safetensors", "--vae");
  if (model.text_encoder.empty())
    refuse_pickle(root.text_encoder_pickle, "text encoder", "umt5_xxl_fp16.safetensors",
                  "--text-encoder");
  if (model.tokenizer.empty())
    refuse(std::string("the folder has no ") + root.tokenizer +
           ", the tokenizer; legal: " + "--tokenizer FILE");
  if (model.audio_encoder.empty())
    refuse(std::string("the folder has no ") + root.audio_encoder +
           ", the audio encoder; legal: a folder of that name with config.json and "
           "model.safetensors");
}

}  // namespace weft
