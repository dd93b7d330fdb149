#pragma once
// Saves the parts of a model folder as single files, with the names of the original repositories.
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "io/weights/tensor_file.h"
#include "kernels/copy.h"
#include "models/autoencoder_kl/vae.h"
#include "models/flux/names.h"
#include "models/umt5/names.h"
#include "models/wan/names.h"
#include "models/wan/vae.h"
#include "tests/support/gguf_copy.h"
#include "tests/support/golden_case.h"

namespace weft::test {

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

// Writes a FLUX.1 transformer with the names of Black Forest Labs' repository, where some matrices
// are joined.
inline void save_flux_transformer(const TensorFile& source, const FluxConfig& config,
                                  const std::string& path, const std::string& prefix = "") {
  std::map<std::string, Tensor> joined;
  Stream stream = Stream::cpu(1);
  for (const TensorSpec& spec : flux_tensors(config)) {
    const TensorPlace place = flux_original_place(config, spec.name);
    const int64_t rows = spec.shape[0], stretch = rows / place.taken, half = rows / 2;
    std::vector<int64_t> shape = spec.shape;
    shape[0] = place.parts * stretch;
    const auto at = joined.try_emplace(prefix + place.name, DType::kF32, shape);
    const Tensor values = load_tensor(source, spec.name);
    const TensorView to = at.first->second.view().slice(0, place.part * stretch, rows);
    if (place.swapped) {
      copy(stream, values.view().slice(0, 0, half), to.slice(0, half, half));
      copy(stream, values.view().slice(0, half, half), to.slice(0, 0, half));
    } else {
      copy(stream, values, to);
    }
  }
  std::vector<std::pair<std::string, TensorView>> tensors;
  for (const auto& [name, tensor] : joined) tensors.emplace_back(name, tensor.view());
  write_safetensors(path, tensors);
}

// Writes FLUX.1's VAE with the names of that repository. Matrices of attention are convolutions of
// one pixel there.
inline void save_kl_vae(const TensorFile& source, const KlVaeConfig& config,
                        const std::string& path) {
  std::vector<std::pair<std::string, TensorView>> tensors;
  for (const std::string& name : source.names()) {
    TensorView view = source.view(name);
    if (name.find("attentions") != std::string::npos && view.rank == 2)
      view = view.reshape({view[0], view[1], 1, 1});
    tensors.emplace_back(kl_vae_original_name(name, static_cast<int64_t>(config.channels.size())),
                         view);
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
  resave(TensorFile::open(model + "/" + part), path,
         [&](const std::string& name) { return prefix + WanNames{.original = true}(name); });
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
