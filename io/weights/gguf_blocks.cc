#include "io/weights/gguf_blocks.h"

#include "io/nearest.h"

namespace weft {
namespace {

constexpr GgufType quantised(uint32_t id, BlockType type) {
  const BlockShape& shape = shape_of(type);
  return {id, shape.name, shape.values, shape.bytes, DType::kF32, type};
}

constexpr GgufType kTypes[] = {
    {0, "F32", 1, 4, DType::kF32, {}},    {1, "F16", 1, 2, DType::kF16, {}},
    {30, "BF16", 1, 2, DType::kBF16, {}}, {28, "F64", 1, 8, DType::kF64, {}},
    {24, "I8", 1, 1, DType::kI8, {}},     {25, "I16", 1, 2, DType::kI16, {}},
    {26, "I32", 1, 4, DType::kI32, {}},   {27, "I64", 1, 8, DType::kI64, {}},
    quantised(8, BlockType::kQ8_0),       quantised(2, BlockType::kQ4_0),
    quantised(3, BlockType::kQ4_1),       quantised(6, BlockType::kQ5_0),
    quantised(7, BlockType::kQ5_1),       quantised(10, BlockType::kQ2_K),
    quantised(11, BlockType::kQ3_K),      quantised(12, BlockType::kQ4_K),
    quantised(13, BlockType::kQ5_K),      quantised(14, BlockType::kQ6_K),
};

// Types that are not read, with the one of about their size that is.
struct UnreadType {
  uint32_t id;
  const char *name, *nearest;
};
constexpr UnreadType kUnreadTypes[] = {
    {4, "Q4_2", "Q4_0"},        {5, "Q4_3", "Q4_1"},        {9, "Q8_1", "Q8_0"},
    {15, "Q8_K", "Q8_0"},       {16, "IQ2_XXS", "Q2_K"},    {17, "IQ2_XS", "Q2_K"},
    {18, "IQ3_XXS", "Q3_K"},    {19, "IQ1_S", "Q2_K"},      {20, "IQ4_NL", "Q4_K"},
    {21, "IQ3_S", "Q3_K"},      {22, "IQ2_S", "Q2_K"},      {23, "IQ4_XS", "Q4_K"},
    {29, "IQ1_M", "Q2_K"},      {31, "Q4_0_4_4", "Q4_0"},   {32, "Q4_0_4_8", "Q4_0"},
    {33, "Q4_0_8_8", "Q4_0"},   {34, "TQ1_0", "Q2_K"},      {35, "TQ2_0", "Q2_K"},
    {36, "IQ4_NL_4_4", "Q4_K"}, {37, "IQ4_NL_4_8", "Q4_K"}, {38, "IQ4_NL_8_8", "Q4_K"},
    {39, "MXFP4", "Q4_K"},      {40, "NVFP4", "Q4_K"},
};

}  // namespace

const GgufType* find_gguf_type(uint32_t id) {
  for (const GgufType& type : kTypes)
    if (type.id == id) return &type;
  return nullptr;
}

std::string describe_unread_gguf_type(uint32_t id) {
  for (const UnreadType& type : kUnreadTypes)
    if (type.id == id)
      return std::string(type.name) + ", which is not read; the nearest that is: " + type.nearest;
  return std::to_string(id) + ", which is not known";
}

std::string known_gguf_types() { return listed(kTypes, &GgufType::name); }

}  // namespace weft
