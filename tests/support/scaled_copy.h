#pragma once
// Weights in 8 bits with a scale per row, as safetensors files of users hold them.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/copy.h"
#include "tests/support/gguf_copy.h"
#include "tests/support/quantised_copy.h"

namespace weft::test {

// Writes tensors as a safetensors file: matrices `m.weight` as `type`, which is kI8 or kF8E4M3,
// beside a scale per row `m.weight_scale` [rows, 1]; the others in their own dtype.
inline void write_scaled(
    const std::string& path, TensorFile from, BlockType type,
    const Renaming& renamed = [](const std::string& name) { return name; }) {
  const auto source = std::make_shared<const TensorFile>(std::move(from));
  const TensorFile file = quantised_copy(source, type);
  const std::string kWeight = ".weight";
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const std::string& name : file.names()) {
    const TensorView like = source->describe(name);
    if (like.rank != 2 || !name.ends_with(kWeight)) {
      Tensor own(like.dtype, like.shape());
      source->read_run(name, 0, own.view().reshape({like.count()}));
      tensors.emplace_back(renamed(name), std::move(own));
      continue;
    }
    Tensor codes(type == BlockType::kI8 ? DType::kI8 : DType::kF8E4M3, like.shape());
    file.read_blocks(name, 0, TensorView(codes.view().data, DType::kU8, {like.count()}));
    Tensor scales(DType::kF32, {like[0], 1});
    std::ranges::copy(file.stored()->scales(name), scales.as<float>());
    const std::string weight = renamed(name);
    tensors.emplace_back(weight + "_scale", std::move(scales));
    tensors.emplace_back(weight, std::move(codes));
  }
  write_safetensors(path, {tensors.begin(), tensors.end()});
}

// Copies a model folder, with the weights of one of its parts ("transformer") in 8 bits with a
// scale per row.
inline void copy_with_scaled(const std::string& from, const std::string& to,
                             const std::string& part, BlockType type) {
  namespace fs = std::filesystem;
  const std::string config = "/" + part + "/config.json";
  fs::copy(from, to, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  fs::remove_all(to + "/" + part);
  fs::create_directories(to + "/" + part);
  fs::copy_file(from + config, to + config);
  write_scaled(to + "/" + part + "/diffusion_pytorch_model.safetensors",
               TensorFile::open(from + "/" + part), type);
}

}  // namespace weft::test
