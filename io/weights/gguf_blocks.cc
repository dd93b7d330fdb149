#include "io/weights/gguf_blocks.h"

namespace weft {
namespace {

constexpr GgufType quantised(uint32_t id, BlockType type) {
  const BlockShape& shape = shape_of(type);
  return {id, shape.name, shape.values, shape.bytes, DType::kF32, type};
}

constexpr GgufType kTypes[] = {
    {0, "F32", 1, 4, DType::kF32, {}},    {1, "F16", 1, 2, DType::kF16, {}},
    {30, "BF16", 1, 2, DType::kBF16, {}}, quantised(8, BlockType::kQ8_0),
    quantised(2, BlockType::kQ4_0),       quantised(6, BlockType::kQ5_0),
    quantised(12, BlockType::kQ4_K),      quantised(13, BlockType::kQ5_K),
    quantised(14, BlockType::kQ6_K),
};

}  // namespace

const GgufType* find_gguf_type(uint32_t id) {
  for (const GgufType& type : kTypes)
    if (type.id == id) return &type;
  return nullptr;
}

std::string known_gguf_types() {
  std::string names;
  for (const GgufType& type : kTypes) names.append(names.empty() ? "" : ", ").append(type.name);
  return names;
}

}  // namespace weft
