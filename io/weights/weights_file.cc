#include "io/weights/weights_file.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "io/folder.h"
#include "io/sha256.h"
#include "io/weights/mapping.h"
#include "io/weights/safetensors_header.h"
#include "io/weights/scaled_weights.h"

namespace weft {
namespace {

constexpr int64_t kValuesAtOnce = 4096;  // a multiple of every block

// The name "<stem>-00002-of-00003.gguf" of a part of a split file.
struct SplitName {
  std::string stem;
  uint64_t number = 0, count = 0;  // the first part has the number 1

  std::string text() const {
    std::array<char, 64> tail;
    std::snprintf(tail.data(), tail.size(), "-%05llu-of-%05llu.gguf",
                  static_cast<unsigned long long>(number), static_cast<unsigned long long>(count));
    return stem + tail.data();
  }
};

std::optional<SplitName> split_name(const std::string& path) {
  constexpr std::string_view kForm = "-00000-of-00000.gguf";
  if (path.size() <= kForm.size()) return std::nullopt;
  const std::string tail = path.substr(path.size() - kForm.size());
  for (size_t i = 0; i < kForm.size(); ++i)
    if (kForm[i] == '0' ? tail[i] < '0' || tail[i] > '9' : tail[i] != kForm[i]) return std::nullopt;
  return SplitName{path.substr(0, path.size() - kForm.size()), std::stoul(tail.substr(1, 5)),
                   std::stoul(tail.substr(10, 5))};
}

struct GgufPart {
  explicit GgufPart(const std::string& path)
      : file(path), header(parse_gguf_header({file.data(), file.size()}, path)) {}

  // A number among the metadata of split files.
  uint64_t split(const std::string& key, uint64_t fallback) const {
    const auto found = header.metadata.find("split." + key);
    if (found == header.metadata.end()) return fallback;
    const std::string& text = found->second;
    if (text.empty() || text.size() > 9 || text.find_first_not_of("0123456789") != text.npos)
      refuse_file(file.path(), "metadata \"split." + key + "\" is " + quoted_name(text) +
                                   " (legal: a whole number below 10^9)");
    return std::stoull(text);
  }

  Mapping file;
  GgufHeader header;
};

// Opens the file, and the others of which it is one part.
std::vector<std::unique_ptr<const GgufPart>> open_gguf_parts(const std::string& path) {
  std::vector<std::unique_ptr<const GgufPart>> parts;
  parts.push_back(std::make_unique<const GgufPart>(path));
  const uint64_t count = parts[0]->split("count", 1), number = parts[0]->split("no", 0) + 1;
  if (count <= 1) return parts;
  const std::string what =
      "is part " + std::to_string(number) + " of " + std::to_string(count) + " (split.count)";
  std::optional<SplitName> name = split_name(path);
  if (!name || name->number != number || name->count != count)
    refuse_file(path, what + "; the other parts are found by its name, which must end in " +
                          SplitName{"", number, count}.text());
  std::string missing;
  for (name->number = 1; name->number <= count; ++name->number)
    if (!std::filesystem::exists(name->text()))
      missing +=
          (missing.empty() ? "" : ", ") + std::filesystem::path(name->text()).filename().string();
  if (!missing.empty())
    refuse_file(path, what + ", and beside it these are missing: " + missing.substr(0, 1000) +
                          "; the download is incomplete");
  parts.clear();
  uint64_t tensors = 0;
  for (name->number = 1; name->number <= count; ++name->number) {
    parts.push_back(std::make_unique<const GgufPart>(name->text()));
    const GgufPart& part = *parts.back();
    tensors += part.header.tensors.size();
    if (part.split("count", 1) != count || part.split("no", 0) + 1 != name->number)
      refuse_file(name->text(), "is not part " + std::to_string(name->number) + " of " +
                                    std::to_string(count) +
                                    " (split.no, split.count); it belongs to another file");
  }
  const uint64_t all = parts[0]->split("tensors.count", tensors);
  if (all != tensors)
    refuse_file(path, "metadata \"split.tensors.count\" is " + std::to_string(all) +
                          ", and the parts hold " + std::to_string(tensors) + " tensors");
  return parts;
}

// A tensor file whose values are in GGUF files.
class GgufValues final : public StoredTensors {
 public:
  GgufValues(const std::string& path, const NameChoice& choose) : parts_(open_gguf_parts(path)) {
    std::vector<std::string> names;
    for (const auto& part : parts_)
      for (const GgufTensor& tensor : part->header.tensors) names.push_back(tensor.name);
    const TensorFile::Renaming renamed = choose ? choose(names) : nullptr;
    for (const auto& part : parts_)
      for (const GgufTensor& tensor : part->header.tensors)
        if (const std::string name = renamed ? renamed(tensor.name) : tensor.name; !name.empty())
          if (!places_.try_emplace(name, Place{part.get(), &tensor}).second)
            refuse_file(path, "two tensors are called " + quoted_name(name) +
                                  ", one of them spelled " + quoted_name(tensor.name));
  }

  TensorFile::Origin origin() const {
    TensorFile::Origin out{.format = "GGUF " + std::to_string(parts_[0]->header.version),
                           .files = {},
                           .metadata = parts_[0]->header.metadata,
                           .header_hash = header_hash()};
    for (const auto& part : parts_) out.files.push_back(part->file.path());
    for (const auto& [name, place] : places_) out.bytes += place.tensor->end - place.tensor->begin;
    return out;
  }

  std::vector<TensorFile::Generated> tensors() const {
    std::vector<TensorFile::Generated> list;
    for (const auto& [name, place] : places_) {
      const GgufTensor& tensor = *place.tensor;
      list.push_back({.name = name,
                      .dtype = tensor.type->dtype,
                      .shape = {tensor.extent.begin(), tensor.extent.begin() + tensor.rank},
                      .stored = tensor.type->quantised ? tensor.type->name : ""});
    }
    return list;
  }

  // Writes the values [first, first + out.count()) of a tensor.
  void part(const std::string& name, int64_t first, const TensorView& out) const {
    const Place& place = this->place(name);
    const GgufType& type = *place.tensor->type;
    const Mapping& file = place.part->file;
    const uint64_t at = place.at();
    if (!type.quantised) {
      const auto offset = static_cast<uint64_t>(first * type.bytes);
      return file.read(at + offset, out.bytes(), static_cast<char*>(out.data), name);
    }
    std::array<unsigned char, kValuesAtOnce * 2> packed;  // no block has 16 bits per value
    std::array<float, kValuesAtOnce> values;
    const int64_t end = first + out.count();
    for (int64_t begin = first / type.values * type.values; begin < end; begin += kValuesAtOnce) {
      const int64_t stop = std::min(begin + kValuesAtOnce, end);
      const int64_t blocks = (stop - begin + type.values - 1) / type.values;
      file.read(at + static_cast<uint64_t>(begin / type.values * type.bytes),
                static_cast<uint64_t>(blocks * type.bytes), reinterpret_cast<char*>(packed.data()),
                name);
      expand_blocks(*type.quantised, packed.data(), blocks, values.data());
      const int64_t from = std::max(begin, first);
      std::memcpy(out.as<float>() + (from - first), values.data() + (from - begin),
                  static_cast<size_t>(stop - from) * sizeof(float));
    }
  }

  std::optional<BlockType> blocks(const std::string& name) const override {
    const GgufType& type = *place(name).tensor->type;
    return type.quantised ? type.quantised : block_type(type.dtype);
  }
  void read_blocks(const std::string& name, int64_t first, const TensorView& out) const override {
    const Place& place = this->place(name);
    place.part->file.read(place.at() + static_cast<uint64_t>(first * place.tensor->type->bytes),
                          out.bytes(), static_cast<char*>(out.data), name);
  }

 private:
  struct Place {
    const GgufPart* part;
    const GgufTensor* tensor;
    uint64_t at() const { return part->header.data_begin + tensor->begin; }
  };
  const Place& place(const std::string& name) const {
    const auto found = places_.find(name);
    CHECK(found != places_.end(), name);
    return found->second;
  }

  std::string header_hash() const {
    Sha256 hash;
    for (const auto& part : parts_) {
      const Mapping& file = part->file;
      file.check_size();
      hash.update(file.data(), std::min(part->header.data_begin, file.size()));
      unsigned char size[8];
      for (int i = 0; i < 8; ++i) size[i] = static_cast<unsigned char>(file.size() >> (8 * i));
      hash.update(size, sizeof size);
    }
    return hash.hex();
  }

  std::vector<std::unique_ptr<const GgufPart>> parts_;
  std::map<std::string, Place> places_;  // by the names that the tensors have here
};

// Returns the only .gguf file of a folder that holds no safetensors, or "". The parts of a split
// file are one, whose first part is returned.
std::string gguf_of_folder(const std::string& folder) {
  std::vector<std::string> names;
  std::map<std::string, std::string> found;  // by name, or by the stem of a split one
  list_folder(folder, names);
  std::ranges::sort(names);
  for (const std::string& name : names) {
    if (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json")) return "";
    if (!name.ends_with(".gguf") || name.starts_with('.')) continue;
    const std::optional<SplitName> split = split_name(name);
    found.emplace(split ? split->stem + " of " + std::to_string(split->count) : name, name);
  }
  if (found.size() > 1)
    throw Error(ErrorKind::kModel, folder + ": holds several .gguf files (" +
                                       found.begin()->second + ", " +
                                       std::next(found.begin())->second +
                                       (found.size() > 2 ? ", ..." : "") + "); name one of them");
  return found.empty() ? "" : (std::filesystem::path(folder) / found.begin()->second).string();
}

// The GGUF file that a path means, or "".
std::string gguf_of(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return gguf_of_folder(path);
  return path.ends_with(".gguf") ? path : "";
}

}  // namespace

std::vector<std::string> weight_names(const std::string& path) {
  const std::string gguf = gguf_of(path);
  return (gguf.empty() ? TensorFile::open(path) : open_gguf(gguf)).names();
}

TensorFile open_gguf(const std::string& path, const NameChoice& choose) {
  const auto values = std::make_shared<const GgufValues>(path, choose);
  return TensorFile::derived(
      values->tensors(),
      [values](const std::string& name, int64_t first, const TensorView& out) {
        values->part(name, first, out);
      },
      values->origin(), values);
}

TensorFile open_weights(const std::string& path, const NameChoice& choose) {
  if (const std::string gguf = gguf_of(path); !gguf.empty()) return open_gguf(gguf, choose);
  TensorFile file = TensorFile::open(path);
  const TensorFile::Renaming renamed = choose ? choose(file.names()) : nullptr;
  if (renamed) file.rename(renamed);
  return expand_scaled(std::move(file), renamed);
}

GgufHeader read_gguf_header(const std::string& path) {
  const Mapping file(path);
  return parse_gguf_header({file.data(), file.size()}, path);
}

}  // namespace weft
