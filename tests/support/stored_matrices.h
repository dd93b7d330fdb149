#pragma once
// Random matrices as files store them.
#include <array>
#include <vector>

#include "kernels/convert.h"
#include "kernels/stored_matrix.h"
#include "tests/support/draw.h"

namespace weft::test {

inline std::vector<BlockType> all_block_types() {
  std::vector<BlockType> all;
  for (int i = 0; i < static_cast<int>(BlockType::kCount); ++i)
    all.push_back(static_cast<BlockType>(i));
  return all;
}

// Returns the offsets of the 16-bit floats of a block, its scales.
inline std::vector<int> half_places(BlockType type) {
  switch (type) {
    case BlockType::kQ8_0:
    case BlockType::kQ4_0:
    case BlockType::kQ5_0:
      return {0};
    case BlockType::kQ4_1:
    case BlockType::kQ5_1:
    case BlockType::kQ4_K:
    case BlockType::kQ5_K:
      return {0, 2};
    case BlockType::kQ6_K:
      return {208};
    case BlockType::kQ2_K:
      return {80, 82};
    case BlockType::kQ3_K:
      return {108};
    default:
      return {};
  }
}

// Fills blocks with random bytes whose floats are finite: scales of blocks of about 2^-6, 8-bit
// floats without NaN and Inf, 16-bit floats about normal.
inline void fill_blocks(BlockType type, int64_t blocks, uint32_t seed, uint8_t* out) {
  Random random(seed);
  const BlockShape& shape = shape_of(type);
  const auto put_16 = [](uint16_t bits, uint8_t* at) {
    at[0] = static_cast<uint8_t>(bits);
    at[1] = static_cast<uint8_t>(bits >> 8);
  };
  for (int64_t b = 0; b < blocks; ++b, out += shape.bytes) {
    for (int64_t i = 0; i < shape.bytes; ++i) out[i] = static_cast<uint8_t>(random.below(256));
    for (const int at : half_places(type))
      put_16(float_to_half(static_cast<float>(0.01 * random.uniform())).bits, out + at);
    const auto value = static_cast<float>(random.normal());
    if (type == BlockType::kF16) put_16(float_to_half(value).bits, out);
    if (type == BlockType::kBF16) put_16(to_bf16(value).bits, out);
    if (type == BlockType::kF8E4M3 && (out[0] & 0x7f) == 0x7f) out[0] ^= 1;
    if (type == BlockType::kF8E5M2 && (out[0] & 0x7c) == 0x7c) out[0] ^= 4;
  }
}

// A matrix of random blocks, with so many scales.
inline StoredMatrix random_stored(BlockType type, int64_t out, int64_t in, int64_t scales = 0,
                                  uint32_t seed = 1) {
  StoredMatrix matrix{.type = type, .out = out, .in = in};
  matrix.blocks = Tensor(DType::kU8, {out, matrix.row_bytes()});
  fill_blocks(type, matrix.blocks.count() / shape_of(type).bytes, seed,
              matrix.blocks.as<uint8_t>());
  if (scales > 0) matrix.scales = Tensor(DType::kF32, {scales});
  for (int64_t i = 0; i < scales; ++i)
    matrix.scales.as<float>()[i] = 0.01f * static_cast<float>(i % 7 + 1);
  return matrix;
}

// The matrix's values [out, in] f32, by the reference expansion.
inline Tensor values_of(const StoredMatrix& matrix) {
  Tensor values(DType::kF32, {matrix.out, matrix.in});
  expand_blocks_reference(matrix.type, matrix.blocks.as<uint8_t>(),
                          matrix.out * matrix.in / shape_of(matrix.type).values,
                          values.as<float>());
  if (matrix.scales)
    for (int64_t i = 0; i < values.count(); ++i)
      values.as<float>()[i] *=
          matrix.scales.as<float>()[matrix.scales.count() == 1 ? 0 : i / matrix.in];
  return values;
}

}  // namespace weft::test
