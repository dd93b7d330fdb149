#include "engine/conditions/text_cache.h"

#include <filesystem>

#include "io/sha256.h"
#include "io/weights/tensor_file.h"
#include "kernels/check.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
constexpr const char* kRows = "prompt_embeds";
constexpr const char* kHash = "sha256";

std::string rows_hash(const TensorView& rows) {
  return sha256_hex({static_cast<const char*>(rows.data), static_cast<size_t>(rows.bytes())});
}

}  // namespace

TextCache::TextCache(std::string folder, std::string encoder)
    : folder_(std::move(folder)), encoder_(std::move(encoder)) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (!fs::is_directory(folder_))
    throw Error(ErrorKind::kOutput, "--cache-text is '" + folder_ +
                                        "', which is no folder and cannot be made one" +
                                        (error ? ": " + error.message() : ""));
}

std::string TextCache::path_of(std::span<const int32_t> ids) const {
  Sha256 hash;
  hash.update(encoder_);
  hash.update(ids.data(), ids.size_bytes());
  return (fs::path(folder_) / ("text-" + hash.hex() + ".safetensors")).string();
}

Tensor TextCache::find(std::span<const int32_t> ids, const std::array<int64_t, 2>& shape) const {
  const std::string path = path_of(ids);
  if (!fs::exists(path)) return {};
  try {
    const TensorFile file = TensorFile::open(path);
    const TensorView rows = file.contains(kRows) ? file.view(kRows) : TensorView();
    const auto hash = file.metadata().find(kHash);
    const bool fits = rows && rows.dtype == DType::kF32 && rows.rank == 2 && rows[0] == shape[0] &&
                      rows[1] == shape[1];
    if (!fits || hash == file.metadata().end() || hash->second != rows_hash(rows)) return {};
    return file.read(kRows, 0, 0, shape[0]);
  } catch (const Error&) {
    return {};  // encoding it anew replaces a damaged file
  }
}

void TextCache::keep(std::span<const int32_t> ids, const TensorView& rows) const {
  write_safetensors(path_of(ids), {{kRows, rows}}, {{kHash, rows_hash(rows)}});
}

}  // namespace weft
