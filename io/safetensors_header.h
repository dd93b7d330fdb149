#pragma once
// The JSON header of a safetensors file, checked before a byte of data is touched.
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
  std::vector<TensorEntry> tensors;  // by name
  std::map<std::string, std::string> metadata;
};

// "9.8 GB", for messages.
std::string size_text(uint64_t bytes);
// A name as messages show it: quoted, escaped to one line, at most 120 of its bytes.
std::string quoted_name(std::string_view name);
// The header's dtype words, "F32" ...
std::string_view safetensors_name(DType dtype);

// `start`: the first bytes of the file, at least 8 where there are so many. Returns the header's
// length N once 8 + N bytes are known to exist.
uint64_t safetensors_header_bytes(std::string_view start, uint64_t file_bytes,
                                  const std::string& path);
// `text`: the N header bytes; `data_bytes`: what follows them in the file. Throws Error(kModel)
// unless the tensors cover the data section exactly: in order, no hole, no overlap, no rest.
SafetensorsHeader parse_safetensors_header(std::string_view text, uint64_t data_bytes,
                                           const std::string& path);

}  // namespace weft
