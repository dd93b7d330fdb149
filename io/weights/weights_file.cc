#include "io/weights/weights_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <memory>

#include "io/folder.h"
#include "io/sha256.h"
#include "io/weights/mapping.h"
#include "io/weights/scaled_weights.h"

namespace weft {
namespace {

constexpr int64_t kValuesAtOnce = 4096;  // a multiple of every block

// A tensor file whose values are in a GGUF file.
class GgufValues final : public StoredTensors {
 public:
  explicit GgufValues(const std::string& path)
      : file_(path), header_(parse_gguf_header({file_.data(), file_.size()}, path)) {}

  const GgufHeader& header() const { return header_; }
  const Mapping& file() const { return file_; }

  // Writes the values [first, first + out.count()) of a tensor.
  void part(const std::string& name, int64_t first, const TensorView& out) const {
    const GgufTensor& tensor = this->tensor(name);
    const GgufType& type = *tensor.type;
    const uint64_t at = header_.data_begin + tensor.begin;
    if (!type.quantised) {
      const auto offset = static_cast<uint64_t>(first * type.bytes);
      return file_.read(at + offset, out.bytes(), static_cast<char*>(out.data), name);
    }
    std::array<unsigned char, kValuesAtOnce * 2> packed;  // no block has 16 bits per value
    std::array<float, kValuesAtOnce> values;
    const int64_t end = first + out.count();
    for (int64_t begin = first / type.values * type.values; begin < end; begin += kValuesAtOnce) {
      const int64_t stop = std::min(begin + kValuesAtOnce, end);
      const int64_t blocks = (stop - begin + type.values - 1) / type.values;
      file_.read(at + static_cast<uint64_t>(begin / type.values * type.bytes),
                 static_cast<uint64_t>(blocks * type.bytes), reinterpret_cast<char*>(packed.data()),
                 name);
      expand_blocks(*type.quantised, packed.data(), blocks, values.data());
      const int64_t from = std::max(begin, first);
      std::memcpy(out.as<float>() + (from - first), values.data() + (from - begin),
                  static_cast<size_t>(stop - from) * sizeof(float));
    }
  }

  std::optional<BlockType> blocks(const std::string& name) const override {
    const GgufType& type = *tensor(name).type;
    return type.quantised ? type.quantised : block_type(type.dtype);
  }
  void read_blocks(const std::string& name, int64_t first, const TensorView& out) const override {
    const GgufTensor& tensor = this->tensor(name);
    file_.read(
        header_.data_begin + tensor.begin + static_cast<uint64_t>(first * tensor.type->bytes),
        out.bytes(), static_cast<char*>(out.data), name);
  }

  std::string header_hash() const {
    file_.check_size();
    Sha256 hash;
    hash.update(file_.data(), std::min(header_.data_begin, file_.size()));
    unsigned char size[8];
    for (int i = 0; i < 8; ++i) size[i] = static_cast<unsigned char>(file_.size() >> (8 * i));
    hash.update(size, sizeof size);
    return hash.hex();
  }

 private:
  const GgufTensor& tensor(const std::string& name) const {
    const auto found = std::ranges::lower_bound(header_.tensors, name, {}, &GgufTensor::name);
    CHECK(found != header_.tensors.end() && found->name == name, name);
    return *found;
  }

  Mapping file_;
  GgufHeader header_;
};

// Returns the only .gguf file of a folder that holds no safetensors, or "".
std::string gguf_of_folder(const std::string& folder) {
  std::vector<std::string> names, found;
  list_folder(folder, names);
  for (const std::string& name : names) {
    if (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json")) return "";
    if (name.ends_with(".gguf") && !name.starts_with('.')) found.push_back(name);
  }
  std::ranges::sort(found);
  if (found.size() > 1)
    throw Error(ErrorKind::kModel, folder + ": holds several .gguf files (" + found[0] + ", " +
                                       found[1] + (found.size() > 2 ? ", ..." : "") +
                                       "); name one of them");
  return found.empty() ? "" : (std::filesystem::path(folder) / found[0]).string();
}

}  // namespace

TensorFile open_gguf(const std::string& path) {
  const auto values = std::make_shared<const GgufValues>(path);
  std::vector<TensorFile::Generated> list;
  TensorFile::Origin origin{.format = "GGUF " + std::to_string(values->header().version),
                            .files = {path},
                            .metadata = values->header().metadata,
                            .header_hash = values->header_hash()};
  for (const GgufTensor& tensor : values->header().tensors) {
    list.push_back({.name = tensor.name,
                    .dtype = tensor.type->dtype,
                    .shape = {tensor.extent.begin(), tensor.extent.begin() + tensor.rank},
                    .stored = tensor.type->quantised ? tensor.type->name : ""});
    origin.bytes += tensor.end - tensor.begin;
  }
  return TensorFile::derived(
      list,
      [values](const std::string& name, int64_t first, const TensorView& out) {
        values->part(name, first, out);
      },
      std::move(origin), values);
}

TensorFile open_weights(const std::string& path) {
  std::error_code error;
  const bool folder = std::filesystem::is_directory(path, error);
  const std::string gguf = folder ? gguf_of_folder(path) : path.ends_with(".gguf") ? path : "";
  if (!gguf.empty()) return open_gguf(gguf);
  return expand_scaled(TensorFile::open(path));
}

GgufHeader read_gguf_header(const std::string& path) {
  const Mapping file(path);
  return parse_gguf_header({file.data(), file.size()}, path);
}

}  // namespace weft
