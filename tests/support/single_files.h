#pragma once
// Saves the parts of a model folder as single files, with the names of the original repositories.
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "io/weights/tensor_file.h"
#include "models/umt5/names.h"
#include "models/wan/names.h"
#include "models/wan/vae.h"
#include "tests/support/golden_case.h"

namespace weft::test {

using Renaming = std::function<std::string(const std::string&)>;

// Writes the tensors of `from` under other names, and bytes as one more tensor of u8.
inline void resave(const TensorFile& from, const std::string& path, const Renaming& renamed,
                   const std::string& extra = "", const std::string& bytes = "") {
  std::vector<std::pair<std::string, TensorView>> tensors;
  for (const std::string& name : from.names()) tensors.emplace_back(renamed(name), from.view(name));
  Tensor inside;
  if (!extra.empty()) {
    inside = Tensor(DType::kU8, {static_cast<int64_t>(bytes.size())});
    std::copy(bytes.begin(), bytes.end(), static_cast<char*>(inside.view().data));
    tensors.emplace_back(extra, inside);
  }
  write_safetensors(path, tensors);
}

inline std::string file_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The parts of a Wan pipeline's folder. The file of the text encoder holds its tokenizer.
inline void save_transformer(const std::string& model, const std::string& path,
                             const std::string& prefix = "model.diffusion_model.",
                             const std::string& part = "transformer") {
  resave(TensorFile::open(model + "/" + part), path, WanNames{.prefix = prefix, .original = true});
}
inline void save_vae(const std::string& model, const std::string& path) {
  const WanVaeConfig config = WanVaeConfig::from_json_file(model + "/vae/config.json");
  resave(TensorFile::open(model + "/vae"), path,
         [&](const std::string& name) { return wan_vae_original_name(config, name); });
}
inline void save_text_encoder(const std::string& model, const std::string& path,
                              Umt5Spelling spelling = Umt5Spelling::kOriginal) {
  resave(
      TensorFile::open(model + "/text_encoder"), path,
      [&](const std::string& name) { return umt5_name(spelling, name); }, "spiece_model",
      file_bytes(model + "/tokenizer/spiece.model"));
}

}  // namespace weft::test
