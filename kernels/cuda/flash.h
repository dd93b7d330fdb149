#pragma once
// What the flash kernels are given, by value. A row is one query of one query head; rows of the
// `share` query heads of a key/value head follow each other, so that they share its tiles: row r is
// query r / share, head r % share of the group.
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/device_plan.h"

namespace weft::cuda {

// Keys and values of one segment. Strides are in elements.
struct FlashSegment {
  const void *k = nullptr, *v = nullptr;
  int64_t k_row = 0, k_head = 0, v_row = 0, v_head = 0;
  int keys = 0;
  int first_key = 0;   // in the list of all keys: the bias's column
  int first_tile = 0;  // in the list of this launch's tiles
  int diagonal = 0;    // causal: query i sees keys up to i + diagonal
  float shift = 0;     // added to its logits, which are powers of two
};

inline constexpr int kFlashSegments = 32;  // 2.3 of the 4 KiB of parameters

struct FlashArgs {
  const void* q = nullptr;
  int64_t q_row = 0, q_head = 0;
  void* out = nullptr;
  int64_t out_row = 0, out_head = 0, out_part = 0;
  float* lse = nullptr;  // or null
  int64_t lse_row = 0, lse_head = 0, lse_part = 0;
  const float* bias = nullptr;  // or null
  int64_t bias_head = 0, bias_row = 0, bias_key = 0;
  float scale = 1;  // of q k^T, times log2(e)
  int queries = 0, share = 1, size = 0;
  int segments = 0, tiles = 0, parts = 1;  // part p takes the p-th share of the tiles
  bool causal = false;
  bool f32_out = false;
  bool aligned = false;  // rows of q, k, v are whole 16-byte pieces at multiples of 16 bytes
  FlashSegment segment[kFlashSegments]{};

  int rows() const { return queries * share; }
};

// Larger heads, by products; the first `scratch_used` bytes of the queue's scratch are the
// caller's. One part, and tiles of kAttentionGemmTile keys.
void attention_gemm(const Stream& stream, DType dtype, int kv_heads, const FlashArgs& args,
                    size_t scratch_used);

// Rows of a block. A few rows lie in blocks of one warp.
enum class FlashRows { k16 = 16, k64 = 64, k128 = 128 };

// One launch over args.parts x kv_heads x blocks of rows. bf16 or f32 (whose blocks have 64 rows).
void launch_flash(const Stream& stream, DType dtype, FlashRows rows, int kv_heads,
                  const FlashArgs& args);

// By products of warpgroups: compute capability 9.0, heads of up to 128, no bias.
inline constexpr int kFlashSm90Tile = 128;  // keys
inline constexpr int kFlashSm90LargestHead = 128;
// What it takes of scratch for `rows` of FlashArgs over tiles of keys, in words of 1 or 2 bytes.
inline size_t flash_sm90_maxima_bytes(int kv_heads) {
  return (3 * sizeof(uint32_t) * static_cast<size_t>(kv_heads) + 255) / 256 * 256;
}
inline size_t flash_sm90_scratch_bytes(size_t element_bytes, int64_t rows, int64_t tiles,
                                       int kv_heads) {
  return flash_sm90_maxima_bytes(kv_heads) +
         static_cast<size_t>(kv_heads) * 128 * 128 * element_bytes *
             static_cast<size_t>((rows + 127) / 128 + 2 * tiles);
}
// One launch over args.parts x kv_heads x blocks of 128 rows: q, k, v bf16, or in 8 bits f32 too.
// The first `scratch_used` bytes of the queue's scratch are the caller's.
void launch_flash_sm90(const Stream& stream, DType dtype, AttentionFormat format, int kv_heads,
                       const FlashArgs& args, size_t scratch_used);

// Instantiations, by the padded head size.
// f32 knows blocks of 64 rows only.
void flash_bf16_64(const Stream& stream, FlashRows rows, int kv_heads, const FlashArgs& args);
void flash_bf16_96(const Stream& stream, FlashRows rows, int kv_heads, const FlashArgs& args);
void flash_bf16_128(const Stream& stream, FlashRows rows, int kv_heads, const FlashArgs& args);
void flash_bf16_256(const Stream& stream, FlashRows rows, int kv_heads, const FlashArgs& args);
void flash_f32(const Stream& stream, int kv_heads, const FlashArgs& args);

}  // namespace weft::cuda
