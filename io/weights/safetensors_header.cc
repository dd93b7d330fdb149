#include "io/weights/safetensors_header.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "io/nearest.h"
#include "io/weights/file_kind.h"
#include "io/weights/mapping.h"

namespace weft {
namespace {

using nlohmann::json;

constexpr std::string_view kMetadataKey = "__metadata__";
constexpr std::string_view kDTypeNames[] = {"F32", "BF16", "F16", "F64",  "I8",      "U8",
                                            "I16", "I32",  "I64", "BOOL", "F8_E4M3", "F8_E5M2"};
static_assert(std::size(kDTypeNames) == static_cast<size_t>(DType::kCount));
// Types that are not read. A file may hold tensors of them that nothing uses.
struct UnreadDType {
  std::string_view name;
  uint64_t bits;
};
constexpr UnreadDType kUnreadDTypes[] = {
    {"U16", 16},        {"U32", 32},        {"U64", 64},    {"C64", 64},    {"F8_E8M0", 8},
    {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4}};
constexpr int kMaxHeaderDims = 8;
constexpr uint64_t kExtentLimit = uint64_t{1} << 48;

std::string percent(uint64_t part, uint64_t whole) {
  // It is rounded down, so that an incomplete file is never "100 %".
  return std::to_string(static_cast<uint64_t>(static_cast<long double>(part) * 100 / whole)) + " %";
}

// Reads the header from parse events: {name: {dtype, shape: [..], data_offsets: [begin, end]},
// "__metadata__": {string: string}}. Anything else is refused at once.
class HeaderReader : public nlohmann::json_sax<json> {
 public:
  HeaderReader(const std::string& path, SafetensorsHeader& out) : path_(path), out_(out) {}

  bool null() override {
    if (level_ != kTop || key_ != kMetadataKey) unexpected("null");
    return true;
  }
  bool boolean(bool) override { unexpected("a boolean"); }
  bool number_integer(int64_t) override { unexpected("a negative number"); }
  bool number_float(double, const std::string&) override {
    unexpected("a fraction or a huge number");
  }
  bool binary(json::binary_t&) override { unexpected("binary data"); }
  bool number_unsigned(uint64_t value) override {
    if (level_ != kList) unexpected("a number");
    if (field_ == kShape) {
      if (dims_ == kMaxHeaderDims) fault("has more than 8 dimensions");
      if (value >= kExtentLimit)
        fault("has an extent of " + std::to_string(value) + " (limit 2^48)");
      shape_[dims_++] = value;
    } else {
      if (offset_count_ == 2) fault("has more than two data_offsets");
      offsets_[offset_count_++] = value;
    }
    return true;
  }
  bool string(std::string& value) override {
    if (level_ == kMetadata) {
      if (out_.metadata.size() == kMaxMetadata)
        refuse_file(path_,
                    "more than " + std::to_string(kMaxMetadata) + " entries in __metadata__");
      if (!out_.metadata.emplace(std::move(key_), std::move(value)).second)
        refuse_file(path_, "a key stands twice in __metadata__");
      return true;
    }
    if (level_ != kTensor || field_ != kDType) unexpected("a string");
    const auto* found = std::find(std::begin(kDTypeNames), std::end(kDTypeNames), value);
    const auto* unread =
        std::ranges::find(kUnreadDTypes, std::string_view(value), &UnreadDType::name);
    unread_ = unread == std::end(kUnreadDTypes) ? nullptr : unread;
    if (unread_) return true;
    if (found == std::end(kDTypeNames))
      fault("has dtype " + quoted_name(value) + ", must be one of " + listed(kDTypeNames));
    entry_.dtype = static_cast<DType>(found - kDTypeNames);
    return true;
  }
  bool start_object(size_t) override {
    if (level_ == kStart) {
      level_ = kTop;
    } else if (level_ == kTop) {
      level_ = key_ == kMetadataKey ? kMetadata : kTensor;
      if (level_ == kMetadata && std::exchange(metadata_seen_, true))
        refuse_file(path_, "__metadata__ stands twice in the header");
      if (level_ == kTensor) begin_tensor();
    } else {
      unexpected("an object");
    }
    return true;
  }
  bool end_object() override {
    if (level_ == kTensor) end_tensor();
    level_ = level_ == kTop ? kDone : kTop;
    return true;
  }
  bool start_array(size_t) override {
    if (level_ != kTensor || (field_ != kShape && field_ != kOffsets)) unexpected("a list");
    level_ = kList;
    return true;
  }
  bool end_array() override {
    level_ = kTensor;
    return true;
  }
  bool key(std::string& name) override {
    if (level_ == kTensor) {
      field_ = name == "dtype"          ? kDType
               : name == "shape"        ? kShape
               : name == "data_offsets" ? kOffsets
                                        : kFields;
      if (field_ == kFields) fault("has an unknown field " + quoted_name(name));
      if (std::exchange(seen_[field_], true)) fault("has " + quoted_name(name) + " twice");
    } else {
      if (level_ == kTop && name.size() > kMaxNameBytes)
        refuse_file(path_, "a tensor's name has " + std::to_string(name.size()) + " bytes (limit " +
                               std::to_string(kMaxNameBytes) + ")");
      key_ = std::move(name);
    }
    return true;
  }
  bool parse_error(size_t byte, const std::string&, const nlohmann::detail::exception& e) override {
    std::string reason = e.what();
    if (const size_t end = reason.find("] "); reason.starts_with('[') && end != reason.npos)
      reason.erase(0, end + 2);
    if (reason.size() > 300) reason = reason.substr(0, 300) + "...";
    refuse_file(path_,
                "the header is not valid JSON near byte " + std::to_string(byte) + ": " + reason);
  }

 private:
  enum Level { kStart, kTop, kMetadata, kTensor, kList, kDone };
  enum Field { kDType, kShape, kOffsets, kFields };

  [[noreturn]] void fault(const std::string& reason) {
    refuse_file(path_, "tensor " + quoted_name(entry_.name) + " " + reason);
  }
  [[noreturn]] void unexpected(const std::string& found) {
    refuse_file(path_, "the header has " + found + " where none belongs" +
                           (key_.empty() ? "" : ", in " + quoted_name(key_)));
  }

  void begin_tensor() {
    if (out_.tensors.size() == kMaxTensors)
      refuse_file(path_, "more than " + std::to_string(kMaxTensors) + " tensors");
    entry_ = TensorEntry();
    entry_.name = key_;
    dims_ = offset_count_ = 0;
    std::fill(std::begin(seen_), std::end(seen_), false);
    field_ = kFields;
  }

  void end_tensor() {
    constexpr const char* kFieldNames[] = {"dtype", "shape", "data_offsets"};
    for (int field = 0; field < kFields; ++field)
      if (!seen_[field]) fault(std::string("has no ") + kFieldNames[field]);
    if (offset_count_ != 2) fault("must have two data_offsets");
    // Strides are products of extents, too, so they must not overflow even if an extent is 0.
    unsigned __int128 span = unread_ ? unread_->bits : 8 * size_of(entry_.dtype);
    bool empty = false;
    for (int i = 0; i < dims_; ++i) {
      empty |= shape_[i] == 0;
      span *= std::max<uint64_t>(shape_[i], 1);
      if (span > static_cast<unsigned __int128>(1) << 65) fault("has a shape whose bytes overflow");
    }
    const uint64_t bytes = empty ? 0 : static_cast<uint64_t>((span + 7) / 8);
    entry_.begin = offsets_[0];
    entry_.end = offsets_[1];
    if (entry_.end < entry_.begin || entry_.end - entry_.begin != bytes)
      fault("has data_offsets [" + std::to_string(entry_.begin) + ", " +
            std::to_string(entry_.end) + "], its shape and dtype need " + std::to_string(bytes) +
            " bytes");
    if (unread_) out_.unread.emplace(entry_.name, unread_->name);
    if (dims_ > kMaxRank && !unread_)
      fault("has " + std::to_string(dims_) + " dimensions, at most " + std::to_string(kMaxRank) +
            " are supported");
    entry_.rank = std::min(dims_, kMaxRank);
    for (int i = 0; i < entry_.rank; ++i) entry_.extent[i] = static_cast<int64_t>(shape_[i]);
    out_.tensors.push_back(std::move(entry_));
  }

  const std::string& path_;
  SafetensorsHeader& out_;
  Level level_ = kStart;
  Field field_ = kFields;
  std::string key_;
  TensorEntry entry_;
  const UnreadDType* unread_ = nullptr;
  bool seen_[kFields] = {};
  bool metadata_seen_ = false;
  int dims_ = 0, offset_count_ = 0;
  uint64_t shape_[kMaxHeaderDims] = {}, offsets_[2] = {};
};

// Checks that the tensors, sorted by offset, each begin where the previous one ends.
void check_cover(const SafetensorsHeader& header, uint64_t data_bytes, uint64_t header_bytes,
                 const std::string& path) {
  std::vector<uint32_t> order(header.tensors.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const TensorEntry &x = header.tensors[a], &y = header.tensors[b];
    return x.begin != y.begin ? x.begin < y.begin : x.end < y.end;
  });
  uint64_t at = 0;
  const TensorEntry* before = nullptr;
  for (uint32_t i : order) {
    const TensorEntry& tensor = header.tensors[i];
    if (tensor.begin < at)
      refuse_file(path, "tensors " + quoted_name(before->name) + " and " +
                            quoted_name(tensor.name) + " overlap");
    if (tensor.begin > at)
      refuse_file(path, "a hole of " + std::to_string(tensor.begin - at) + " bytes before tensor " +
                            quoted_name(tensor.name));
    at = tensor.end;
    before = &tensor;
  }
  if (at > data_bytes)
    refuse_file(path,
                "file is " + size_text(8 + header_bytes + data_bytes) + ", header needs " +
                    size_text(8 + header_bytes + at) + " (" +
                    percent(8 + header_bytes + data_bytes, 8 + header_bytes + at) +
                    "): the download is incomplete; fetch the file again or compare its size and "
                    "SHA-256 with the source");
  if (at < data_bytes)
    refuse_file(path, "holds " + std::to_string(data_bytes - at) + " bytes after its last tensor");
}

}  // namespace

std::string size_text(uint64_t bytes) {
  constexpr const char* kUnits[] = {"kB", "MB", "GB", "TB", "PB", "EB"};
  if (bytes < 1000) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes) / 1000;
  int unit = 0;
  while (value >= 999.95 && unit < 5) {
    value /= 1000;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %s", value, kUnits[unit]);
  return text;
}

std::string quoted_name(std::string_view name) {
  return json(std::string(name.substr(0, 120))).dump(-1, ' ', true, json::error_handler_t::replace);
}

std::string_view safetensors_name(DType dtype) { return kDTypeNames[static_cast<size_t>(dtype)]; }

uint64_t safetensors_header_bytes(std::string_view start, uint64_t file_bytes,
                                  const std::string& path) {
  if (file_bytes < 8 || start.size() < 8)
    refuse_file(path, "is " + std::to_string(file_bytes) +
                          " bytes long, too short for safetensors; the download is incomplete");
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i)
    header_bytes = header_bytes << 8 | static_cast<unsigned char>(start[i]);
  const bool begins = start.size() < 9 || start[8] == '{';
  if (header_bytes > kMaxHeaderBytes || !begins)
    if (const std::string kind = file_kind(start); !kind.empty()) refuse_file(path, kind);
  if (header_bytes > kMaxHeaderBytes)
    refuse_file(path, "is not a safetensors file: its first 8 bytes give a header of " +
                          std::to_string(header_bytes) + " bytes (limit " +
                          std::to_string(kMaxHeaderBytes) + ")");
  if (header_bytes > file_bytes - 8)
    refuse_file(path, "file is " + size_text(file_bytes) + ", the header alone needs " +
                          size_text(8 + header_bytes) + " (" +
                          percent(file_bytes, 8 + header_bytes) +
                          "): the download is incomplete or this is not a safetensors file");
  if (header_bytes < 2)
    refuse_file(path,
                "the header has " + std::to_string(header_bytes) + " bytes, at least 2 are needed");
  return header_bytes;
}

SafetensorsHeader parse_safetensors_header(std::string_view text, uint64_t data_bytes,
                                           const std::string& path) {
  if (!text.starts_with('{')) refuse_file(path, "the header does not begin with '{'");
  SafetensorsHeader header;
  HeaderReader reader(path, header);
  json::sax_parse(text.begin(), text.end(), &reader);
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; });
  for (size_t i = 1; i < header.tensors.size(); ++i)
    if (header.tensors[i].name == header.tensors[i - 1].name)
      refuse_file(path,
                  "tensor " + quoted_name(header.tensors[i].name) + " stands twice in the header");
  check_cover(header, data_bytes, text.size(), path);
  std::erase_if(header.tensors,
                [&](const TensorEntry& entry) { return header.unread.contains(entry.name); });
  return header;
}

}  // namespace weft
