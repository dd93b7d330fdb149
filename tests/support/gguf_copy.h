#pragma once
// Model folders whose transformer or text encoder is a quantised file.
#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/copy.h"
#include "tests/io/gguf_testing.h"
#include "tests/support/quantised_copy.h"

namespace weft::test {

inline uint32_t gguf_number(BlockType type) {
  constexpr std::array<uint32_t, static_cast<size_t>(BlockType::kCount)> kNumbers{
      1, 30, 0, 0, 0, 8, 2, 6, 12, 13, 14, 3, 7, 10, 11};
  return kNumbers[static_cast<size_t>(type)];
}

// Gives a tensor another name.
using Renaming = std::function<std::string(const std::string&)>;

// Writes tensors as a GGUF file with the metadata `entries`: matrices whose columns are whole
// blocks as `type`, the others as F32. Without a type all of them are F32.
inline void write_gguf(
    const std::string& path, TensorFile from, std::optional<BlockType> type,
    const Renaming& renamed = [](const std::string& name) { return name; },
    std::vector<std::string> entries = {}) {
  const auto source = std::make_shared<const TensorFile>(std::move(from));
  const std::optional<TensorFile> quantised =
      type ? std::optional(quantised_copy(source, *type)) : std::nullopt;
  const TensorFile& file = quantised ? *quantised : *source;
  GgufBytes bytes;
  bytes.entries = std::move(entries);
  for (const std::string& name : file.names()) {
    const TensorView like = file.describe(name);
    std::vector<uint64_t> extents(like.shape().rbegin(), like.shape().rend());
    if (extents.empty()) extents = {1};
    const bool packed = type && like.rank == 2 && like[1] % shape_of(*type).values == 0;
    Tensor data(DType::kF32, {like.count()});
    if (packed) {
      const int64_t blocks = like.count() / shape_of(*type).values;
      data = Tensor(DType::kU8, {blocks * shape_of(*type).bytes});
      file.read_blocks(name, 0, data);
    } else {
      const Tensor stored(like.dtype, {like.count()});
      Stream stream = Stream::cpu(1);
      file.read_run(name, 0, stored);
      copy(stream, stored, data);
    }
    bytes.tensors.push_back(
        gguf_tensor(renamed(name), extents, packed ? gguf_number(*type) : 0, bytes.data.size()));
    bytes.data.append(static_cast<const char*>(data.view().data), data.view().bytes());
    bytes.data.append((32 - bytes.data.size() % 32) % 32, '\0');
  }
  std::ofstream(path, std::ios::binary) << bytes.file();
}

// Copies a model folder, with the weights of one of its parts ("transformer") as a GGUF file.
inline void copy_with_gguf(const std::string& from, const std::string& to, const std::string& part,
                           BlockType type) {
  namespace fs = std::filesystem;
  fs::copy(from, to, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  fs::remove_all(fs::path(to) / part);
  fs::create_directories(fs::path(to) / part);
  fs::copy_file(fs::path(from) / part / "config.json", fs::path(to) / part / "config.json");
  write_gguf((fs::path(to) / part / "model.gguf").string(),
             TensorFile::open((fs::path(from) / part).string()), type);
}

}  // namespace weft::test
