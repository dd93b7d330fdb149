#pragma once
// Reads the JSON header of a safetensors file and checks it before any data is read.
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/tensor.h"

namespace weft {

inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
inline constexpr size_t kMaxTensors = 1'000'000;
inline constexpr size_t kMaxNameBytes = 4096;
inline constexpr size_t kMaxMetadata = 65536;  // entries

struct TensorEntry {
  std::string name;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<int64_t, kMaxRank> extent{};
  uint64_t begin = 0, end = 0;  // bytes in the data section
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;           // by name
  std::map<std::string, std::string> unread;  // tensors of types that are not read: name, type
  std::map<std::string, std::string> metadata;
};

// Formats a size for messages: "9.8 GB".
std::string size_text(uint64_t bytes);
// Formats a name for messages: quoted, escaped to one line, at most 120 of its bytes.
std::string quoted_name(std::string_view name);
// The name of a dtype in the header: "F32", ...
std::string_view safetensors_name(DType dtype);

// Returns the header's length N after checking that the file has 8 + N bytes. `start` holds the
// first kFileKindBytes of the file, or all of it. A file of another kind is refused by that kind.
uint64_t safetensors_header_bytes(std::string_view start, uint64_t file_bytes,
                                  const std::string& path);
// Parses the N header bytes `text`; `data_bytes` more bytes follow them in the file. Throws
// Error(kModel) unless the tensors cover the data exactly: in order, with no gap, overlap or rest.
SafetensorsHeader parse_safetensors_header(std::string_view text, uint64_t data_bytes,
                                           const std::string& path);

}  // namespace weft
