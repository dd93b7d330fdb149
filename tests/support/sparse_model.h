#pragma once
// Model folders of the true size of published models, whose weights take no disk space.
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/registry.h"

namespace weft::test {

// Writes a safetensors file of zeros with these tensors. It is sparse.
inline void write_sparse(const std::filesystem::path& path, const std::vector<TensorSpec>& tensors,
                         DType dtype = DType::kBF16) {
  nlohmann::json header = nlohmann::json::object();
  uint64_t at = 0;
  for (const TensorSpec& tensor : tensors) {
    uint64_t bytes = size_of(dtype);
    for (const int64_t extent : tensor.shape) bytes *= static_cast<uint64_t>(extent);
    header[tensor.name] = {{"dtype", dtype == DType::kBF16 ? "BF16" : "F32"},
                           {"shape", tensor.shape},
                           {"data_offsets", {at, at + bytes}}};
    at += bytes;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const auto size = static_cast<uint64_t>(text.size());
  std::ofstream file(path, std::ios::binary);
  for (int i = 0; i < 8; ++i) file.put(static_cast<char>(size >> (8 * i)));
  file << text;
  file.close();
  std::filesystem::resize_file(path, 8 + size + at);
}

// Replaces fields of a JSON file.
inline void change_json(const std::filesystem::path& path, const nlohmann::json& fields) {
  nlohmann::json json = nlohmann::json::parse(std::ifstream(path));
  json.update(fields);
  std::ofstream(path) << json;
}

// A folder in the layout of Wan 2.1 T2V 14B with `layers` of its 40 blocks, with the text encoder
// UMT5-XXL and the published VAE. All weights are zero, in bf16.
inline void write_sparse_14b(const std::filesystem::path& folder, int layers = 40) {
  namespace fs = std::filesystem;
  fs::remove_all(folder);
  fs::copy("tests/golden/pipeline_t2v/model", folder, fs::copy_options::recursive);
  change_json(folder / "transformer/config.json", {{"num_layers", layers},
                                                   {"num_attention_heads", 40},
                                                   {"attention_head_dim", 128},
                                                   {"ffn_dim", 13824},
                                                   {"text_dim", 4096},
                                                   {"rope_max_seq_len", 1024}});
  change_json(folder / "text_encoder/config.json", {{"d_model", 4096},
                                                    {"d_ff", 10240},
                                                    {"d_kv", 64},
                                                    {"num_heads", 64},
                                                    {"num_layers", 24},
                                                    {"vocab_size", 256384}});
  change_json(folder / "vae/config.json",
              {{"base_dim", 96}, {"dim_mult", {1, 2, 4, 4}}, {"num_res_blocks", 2}});
  const ModelDirectory model = open_model_directory(folder.string());
  const auto replace = [](const fs::path& path, const std::vector<TensorSpec>& tensors) {
    fs::remove(path);
    write_sparse(path, tensors);
  };
  replace(folder / "transformer/diffusion_pytorch_model.safetensors", model.expert(0).tensors());
  replace(folder / "text_encoder/model.safetensors", model.text_model->tensors());
  replace(folder / "vae/diffusion_pytorch_model.safetensors", model.vae_model->tensors());
}

}  // namespace weft::test
