#pragma once
// Reads the header of a GGUF file (version 2 or 3) and checks it before any data is read: the
// metadata, and the name, extents, type and place of every tensor.
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "io/weights/gguf_blocks.h"
#include "kernels/tensor.h"

namespace weft {

struct GgufTensor {
  std::string name;
  const GgufType* type = nullptr;
  int rank = 0;
  std::array<int64_t, kMaxRank> extent{};  // the outermost dimension first
  uint64_t begin = 0, end = 0;             // bytes in the data section
};

// The types of metadata values, by their number in the file.
enum GgufValue : uint32_t {
  kGgufU8 = 0,
  kGgufI8 = 1,
  kGgufU32 = 4,
  kGgufI32 = 5,
  kGgufF32 = 6,
  kGgufBool = 7,
  kGgufString = 8,
  kGgufList = 9,
  kGgufValues = 13
};

// A list among the metadata, whose values stay in the file.
struct GgufList {
  uint32_t type = 0;   // of a value, a GgufValue
  uint64_t count = 0;  // of values
  uint64_t at = 0;     // bytes from the beginning of the file to the first one
};

struct GgufHeader {
  uint32_t version = 0;
  uint64_t data_begin = 0;          // bytes from the beginning of the file to the data section
  std::vector<GgufTensor> tensors;  // by name
  // Numbers as text; strings, but a long one only as its length; of a list its numbers if there are
  // at most 8, else its length.
  std::map<std::string, std::string> metadata;
  std::map<std::string, GgufList> lists;  // the lists among them
};

// Reads the header at the beginning of the `file`'s bytes. Throws Error(kModel) unless the tensors
// cover the data section: in order, each at the next aligned offset. A tensor that was
// flattened has the extents that the metadata's `comfy.gguf.orig_shape.<name>` gives.
GgufHeader parse_gguf_header(std::string_view file, const std::string& path);

}  // namespace weft
