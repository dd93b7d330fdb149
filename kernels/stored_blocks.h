#pragma once
// The types in which files store the values of matrices in 16 bits or fewer, and their expansion to
// f32. Values are stored in blocks, whose scales, if the type has any, are in the block.
#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/dtype.h"

namespace weft {

// The names of the quantised types are GGUF's.
enum class BlockType : uint8_t {
  kF16,
  kBF16,
  kF8E4M3,
  kF8E5M2,
  kI8,
  kQ8_0,
  kQ4_0,
  kQ5_0,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kQ4_1,
  kQ5_1,
  kQ2_K,
  kQ3_K,
  kCount
};

struct BlockShape {
  const char* name;
  int64_t values, bytes;  // of a block
};

inline constexpr BlockShape kBlockShapes[] = {
    {"f16", 1, 2},      {"bf16", 1, 2},     {"f8_e4m3", 1, 1},  {"f8_e5m2", 1, 1},
    {"int8", 1, 1},     {"Q8_0", 32, 34},   {"Q4_0", 32, 18},   {"Q5_0", 32, 22},
    {"Q4_K", 256, 144}, {"Q5_K", 256, 176}, {"Q6_K", 256, 210}, {"Q4_1", 32, 20},
    {"Q5_1", 32, 24},   {"Q2_K", 256, 84},  {"Q3_K", 256, 110}};
static_assert(sizeof(kBlockShapes) / sizeof(kBlockShapes[0]) ==
              static_cast<size_t>(BlockType::kCount));

constexpr const BlockShape& shape_of(BlockType type) {
  return kBlockShapes[static_cast<size_t>(type)];
}

// The type whose blocks are single values of `dtype`; nullopt: none.
constexpr std::optional<BlockType> block_type(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return BlockType::kF16;
    case DType::kBF16:
      return BlockType::kBF16;
    case DType::kF8E4M3:
      return BlockType::kF8E4M3;
    case DType::kF8E5M2:
      return BlockType::kF8E5M2;
    case DType::kI8:
      return BlockType::kI8;
    default:
      return std::nullopt;
  }
}

inline constexpr int64_t kLargestBlock = 256;  // values; a multiple of every block's

// Writes the values of `blocks` blocks at `in`, which may be misaligned, to `out`. Every product
// and difference rounds to f32 by itself, as in the reference.
void expand_blocks(BlockType type, const uint8_t* in, int64_t blocks, float* out);

// Multiplies values by the scale of their row or matrix.
void scale_values(float scale, int64_t count, float* values);

// The expansion as plain loops, with the same bits.
void expand_blocks_reference(BlockType type, const uint8_t* in, int64_t blocks, float* out);

}  // namespace weft
