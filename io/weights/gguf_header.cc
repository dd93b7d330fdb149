#include "io/weights/gguf_header.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>

#include "io/weights/file_kind.h"
#include "io/weights/safetensors_header.h"

namespace weft {
namespace {

constexpr uint64_t kMaxGgufTensors = 65536;
constexpr size_t kLongestText = 4096;  // bytes of a string that is kept
constexpr uint64_t kShortList = 8;     // numbers of a list that are kept
constexpr uint64_t kMaxExtent = uint64_t{1} << 48;
constexpr uint64_t kDefaultAlignment = 32, kMaxAlignment = 65536;
constexpr std::string_view kShapeKey = "comfy.gguf.orig_shape.";

constexpr uint64_t kValueBytes[kGgufValues] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

bool is_text(const std::string& bytes) {
  try {
    nlohmann::json(bytes).dump();
    return true;
  } catch (const nlohmann::json::type_error&) {
    return false;  // not UTF-8
  }
}

// The shortest text that means the same number.
template <class T>
std::string shown(T number) {
  std::array<char, 32> text;
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), number).ptr};
}

class GgufReader {
 public:
  GgufReader(std::string_view file, const std::string& path)
      : file_(file), bytes_(file.substr(0, kMaxHeaderBytes)), path_(path) {}

  GgufHeader read();

 private:
  [[noreturn]] void refuse(const std::string& reason) const {
    throw Error(ErrorKind::kModel, path_ + ": " + reason);
  }
  // Returns the next `count` bytes of `what`.
  std::string_view take(uint64_t count, std::string_view what) {
    if (count > bytes_.size() - at_) {
      if (count <= file_.size() - at_)
        refuse("the header is longer than " + size_text(kMaxHeaderBytes) + ", in " +
               std::string(what));
      refuse("the file ends inside " + std::string(what) + ", " +
             std::to_string(file_.size() - at_) + " of " + std::to_string(count) +
             " bytes are there: the download is incomplete or this is not a GGUF file");
    }
    const std::string_view taken = bytes_.substr(at_, count);
    at_ += count;
    return taken;
  }
  template <class T>
  T number(std::string_view what) {
    T value;
    std::memcpy(&value, take(sizeof value, what).data(), sizeof value);
    return value;
  }
  std::string_view string(std::string_view what) { return take(number<uint64_t>(what), what); }
  std::string name(const std::string& what);

  void start();
  void metadata_entry(uint64_t index);
  uint32_t value_type(const std::string& what);
  std::string value(uint32_t type, const std::string& what);
  std::string list(const std::string& key, const std::string& what);
  GgufTensor tensor(uint64_t index);
  uint64_t alignment() const;
  void restore_shape(GgufTensor& tensor) const;
  void check_cover(uint64_t alignment) const;

  std::string_view file_, bytes_;  // all, and those that a header may have
  const std::string& path_;
  uint64_t at_ = 0, tensors_ = 0, entries_ = 0;
  std::map<std::string, std::vector<uint64_t>> shapes_;  // from the metadata, by tensor
  GgufHeader out_;
};

std::string GgufReader::name(const std::string& what) {
  const std::string name(string(what));
  if (name.empty() || name.size() > kMaxNameBytes || !is_text(name))
    refuse(what + " is " + quoted_name(name) + " of " + std::to_string(name.size()) +
           " bytes (legal: UTF-8 of 1 to " + std::to_string(kMaxNameBytes) + " bytes)");
  return name;
}

void GgufReader::start() {
  const std::string_view magic = take(4, "the first four bytes");
  const std::string kind = magic == "GGUF" ? "" : file_kind(file_);
  if (!kind.empty()) refuse(kind);
  if (magic != "GGUF") refuse("is not a GGUF file: it begins with " + quoted_name(magic));
  out_.version = number<uint32_t>("the version");
  if (out_.version != 2 && out_.version != 3)
    refuse("GGUF version " + std::to_string(out_.version) +
           " is not read (legal: 2 and 3, little endian)");
  tensors_ = number<uint64_t>("the number of tensors");
  entries_ = number<uint64_t>("the number of metadata entries");
  if (tensors_ > kMaxGgufTensors)
    refuse(std::to_string(tensors_) + " tensors (legal: at most " +
           std::to_string(kMaxGgufTensors) + ")");
  if (entries_ > kMaxMetadata)
    refuse(std::to_string(entries_) + " metadata entries (legal: at most " +
           std::to_string(kMaxMetadata) + ")");
}

uint32_t GgufReader::value_type(const std::string& what) {
  const auto type = number<uint32_t>("the type of " + what);
  if (type >= kGgufValues)
    refuse(what + " has the value type " + std::to_string(type) + " (legal: 0 to 12)");
  return type;
}

std::string GgufReader::value(uint32_t type, const std::string& what) {
  if (type == kGgufString) {
    const std::string text(string(what).substr(0, kLongestText + 1));
    if (text.size() > kLongestText) return "a text of more than 4096 bytes";
    if (!is_text(text)) refuse(what + " is not UTF-8");
    return text;
  }
  switch (type) {
    case 0:
      return std::to_string(number<uint8_t>(what));
    case 1:
      return std::to_string(number<int8_t>(what));
    case 2:
      return std::to_string(number<uint16_t>(what));
    case 3:
      return std::to_string(number<int16_t>(what));
    case 4:
      return std::to_string(number<uint32_t>(what));
    case 5:
      return std::to_string(number<int32_t>(what));
    case 6:
      return shown(number<float>(what));
    case 10:
      return std::to_string(number<uint64_t>(what));
    case 11:
      return std::to_string(number<int64_t>(what));
    case 12:
      return shown(number<double>(what));
    default:
      break;
  }
  const auto truth = number<uint8_t>(what);
  if (truth > 1) refuse(what + " is a truth value of " + std::to_string(truth) + " (legal: 0, 1)");
  return truth ? "true" : "false";
}

// A list is passed over unless it is short. Each string of one has a length of its own.
std::string GgufReader::list(const std::string& key, const std::string& what) {
  const uint32_t type = value_type("the list " + what);
  const auto count = number<uint64_t>("the length of " + what);
  if (type == kGgufList) refuse(what + " is a list of lists, which is not read");
  out_.lists[key] = {.type = type, .count = count, .at = at_};
  if (type == kGgufString) {
    for (uint64_t i = 0; i < count; ++i) string(what);
    return std::to_string(count) + " texts";
  }
  if (count > bytes_.size() / kValueBytes[type])
    refuse(what + " is a list of " + std::to_string(count) + " values, more than the file holds");
  if (count > kShortList) {
    take(count * kValueBytes[type], what);
    return std::to_string(count) + " values";
  }
  std::string text;
  for (uint64_t i = 0; i < count; ++i) text += (i ? ", " : "") + value(type, what);
  return "[" + text + "]";
}

void GgufReader::metadata_entry(uint64_t index) {
  const std::string key = name("the key of metadata entry " + std::to_string(index));
  const std::string what = "metadata " + quoted_name(key);
  const uint32_t type = value_type(what);
  const std::string text = type == kGgufList ? list(key, what) : value(type, what);
  if (key == "general.alignment" && type != 4) refuse(what + " is not of type uint32");
  if (key.starts_with(kShapeKey)) {
    const nlohmann::json shape = nlohmann::json::parse(text, nullptr, false);
    bool sound =
        type == kGgufList && shape.is_array() && !shape.empty() && shape.size() <= kMaxRank;
    std::vector<uint64_t> extents;
    for (const nlohmann::json& extent : sound ? shape : nlohmann::json::array()) {
      sound &= extent.is_number_unsigned() && extent.get<uint64_t>() < kMaxExtent;
      if (sound) extents.push_back(extent.get<uint64_t>());
    }
    if (!sound)
      refuse(what + " = " + quoted_name(text) + " (legal: a list of 1 to " +
             std::to_string(kMaxRank) + " extents)");
    shapes_[key.substr(kShapeKey.size())] = std::move(extents);
  }
  if (!out_.metadata.emplace(key, text).second) refuse(what + " stands twice");
}

GgufTensor GgufReader::tensor(uint64_t index) {
  GgufTensor tensor;
  tensor.name = name("the name of tensor " + std::to_string(index));
  const std::string what = "tensor " + quoted_name(tensor.name);
  const auto rank = number<uint32_t>(what);
  if (rank < 1 || rank > kMaxRank)
    refuse(what + " has " + std::to_string(rank) + " dimensions (legal: 1 to " +
           std::to_string(kMaxRank) + ")");
  tensor.rank = static_cast<int>(rank);
  unsigned __int128 values = 1;
  uint64_t row = 0;  // values of the innermost dimension, which is the first in the file
  for (uint32_t i = 0; i < rank; ++i) {
    const auto extent = number<uint64_t>(what);
    if (extent < 1 || extent >= kMaxExtent)
      refuse(what + " has an extent of " + std::to_string(extent) + " (legal: 1 to 2^48)");
    if (i == 0) row = extent;
    tensor.extent[rank - 1 - i] = static_cast<int64_t>(extent);
    values *= extent;
    if (values >= (uint64_t{1} << 56)) refuse(what + " has a shape whose bytes overflow");
  }
  const auto type = number<uint32_t>("the type of " + what);
  tensor.type = find_gguf_type(type);
  if (!tensor.type)
    refuse(what + " has the type " + describe_unread_gguf_type(type) +
           " (legal: " + known_gguf_types() + ")");
  const auto block = static_cast<uint64_t>(tensor.type->values);
  if (row % block)
    refuse(what + " has rows of " + std::to_string(row) + " values, " + tensor.type->name +
           " needs multiples of " + std::to_string(block));
  tensor.begin = number<uint64_t>("the offset of " + what);
  if (tensor.begin >= (uint64_t{1} << 60))
    refuse(what + " has an offset of " + std::to_string(tensor.begin) + " bytes (legal: below " +
           "2^60)");
  tensor.end = tensor.begin +
               static_cast<uint64_t>(values) / block * static_cast<uint64_t>(tensor.type->bytes);
  return tensor;
}

uint64_t GgufReader::alignment() const {
  const auto found = out_.metadata.find("general.alignment");
  if (found == out_.metadata.end()) return kDefaultAlignment;
  const uint64_t value = std::stoull(found->second);
  if (value == 0 || (value & (value - 1)) || value > kMaxAlignment)
    refuse("general.alignment = " + found->second + " (legal: a power of two up to " +
           std::to_string(kMaxAlignment) + ")");
  return value;
}

// Gives a tensor the extents that it had before it was flattened.
void GgufReader::restore_shape(GgufTensor& tensor) const {
  const auto found = shapes_.find(tensor.name);
  if (found == shapes_.end()) return;
  unsigned __int128 before = 1, now = 1;
  for (int i = 0; i < tensor.rank; ++i) now *= static_cast<uint64_t>(tensor.extent[i]);
  for (const uint64_t extent : found->second) {
    before *= extent;
    if (before > now) break;
  }
  if (before != now)
    refuse("tensor " + quoted_name(tensor.name) + " has " +
           std::to_string(static_cast<uint64_t>(now)) + " values, metadata " +
           std::string(kShapeKey) + "* gives it another number");
  tensor.rank = static_cast<int>(found->second.size());
  std::ranges::copy(found->second, tensor.extent.begin());
}

// Checks that the tensors, by offset, each begin at the first aligned byte after the one before.
void GgufReader::check_cover(uint64_t alignment) const {
  std::vector<uint32_t> order(out_.tensors.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::sort(order, {}, [&](uint32_t i) { return out_.tensors[i].begin; });
  const auto aligned = [&](uint64_t at) { return (at + alignment - 1) / alignment * alignment; };
  uint64_t end = 0;
  for (const uint32_t i : order) {
    const GgufTensor& tensor = out_.tensors[i];
    if (tensor.begin != aligned(end))
      refuse("tensor " + quoted_name(tensor.name) + " begins at byte " +
             std::to_string(tensor.begin) + " of the data, must at " +
             std::to_string(aligned(end)) + " (tensors may neither overlap nor leave holes; the " +
             "alignment is " + std::to_string(alignment) + ")");
    end = tensor.end;
  }
  const uint64_t data = std::max(file_.size(), out_.data_begin) - out_.data_begin;
  if (end > data)
    refuse("file is " + size_text(file_.size()) + ", header needs " +
           size_text(out_.data_begin + end) +
           ": the download is incomplete; fetch the file again or compare its size and SHA-256 "
           "with the source");
  if (data > aligned(end))
    refuse("holds " + std::to_string(data - end) + " bytes after its last tensor");
}

GgufHeader GgufReader::read() {
  start();
  for (uint64_t i = 0; i < entries_; ++i) metadata_entry(i);
  const uint64_t alignment = this->alignment();
  for (uint64_t i = 0; i < tensors_; ++i) out_.tensors.push_back(tensor(i));
  std::ranges::sort(out_.tensors, {}, &GgufTensor::name);
  for (size_t i = 1; i < out_.tensors.size(); ++i)
    if (out_.tensors[i].name == out_.tensors[i - 1].name)
      refuse("tensor " + quoted_name(out_.tensors[i].name) + " stands twice in the header");
  for (GgufTensor& tensor : out_.tensors) restore_shape(tensor);
  out_.data_begin = (at_ + alignment - 1) / alignment * alignment;
  check_cover(alignment);
  return std::move(out_);
}

}  // namespace

GgufHeader parse_gguf_header(std::string_view file, const std::string& path) {
  return GgufReader(file, path).read();
}

}  // namespace weft
