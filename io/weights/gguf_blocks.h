#pragma once
// The types of GGUF's tensors. Quantised values are stored in blocks with scales of their own.
#include <cstdint>
#include <optional>
#include <string>

#include "kernels/dtype.h"
#include "kernels/stored_blocks.h"

namespace weft {

struct GgufType {
  uint32_t id;                         // in the file
  const char* name;                    // "Q4_K"
  int64_t values;                      // of a block
  int64_t bytes;                       // of a block
  DType dtype;                         // of the values; kF32 if they are quantised
  std::optional<BlockType> quantised;  // nullopt for types that are stored as they are
};

// Returns null for a type that is not read.
const GgufType* find_gguf_type(uint32_t id);
// "IQ4_NL, which is not read; the nearest that is: Q4_K".
std::string describe_unread_gguf_type(uint32_t id);
std::string known_gguf_types();  // "F32, F16, ..."

}  // namespace weft
