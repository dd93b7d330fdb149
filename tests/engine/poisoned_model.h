#pragma once
// Makes a model folder in which one tensor holds a NaN or another value that breaks it.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "io/weights/tensor_file.h"

namespace weft::test {

// Copies `model` into `folder`, writes `value` to the first element of the f32 `tensor` of
// `component`, and returns the copy's path. Throws Error if there is no such tensor.
inline std::string poisoned(const std::string& model, const std::string& component,
                            const std::string& tensor, const std::string& folder,
                            float value = NAN) {
  namespace fs = std::filesystem;
  const fs::path copy = fs::path(folder) / ("poisoned_" + component + "_" + tensor);
  fs::remove_all(copy);
  fs::copy(model, copy, fs::copy_options::recursive);
  const bool text = component.ends_with("_encoder");
  const std::string path =
      copy / component / (text ? "model.safetensors" : "diffusion_pytorch_model.safetensors");
  std::vector<Tensor> owners;
  std::vector<std::pair<std::string, TensorView>> tensors;
  {
    const TensorFile file = TensorFile::open(path);
    file.view(tensor);  // throws where it is missing
    for (const std::string& name : file.names()) {
      const TensorView view = file.view(name);
      owners.emplace_back(view.dtype, view.shape());
      std::memcpy(owners.back().view().data, view.data, view.bytes());
      if (name == tensor) owners.back().as<float>()[0] = value;
      tensors.emplace_back(name, owners.back().view());
    }
  }
  fs::remove(path);
  write_safetensors(path, tensors);
  return copy;
}

}  // namespace weft::test
