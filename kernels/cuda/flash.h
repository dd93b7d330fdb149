#pragma once
// FlashArgs is passed to the flash kernels by value. A row is one query of one query head. The rows
// of the `share` query heads of a key/value head follow each other, so that they share its tiles:
// row r is query r / share, head r % share of the group.
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/device_plan.h"

namespace weft::cuda {

// The keys and values of one segment. Strides are in elements.
struct FlashSegment {
  const void *k = nullptr, *v = nullptr;
  int64_t k_row = 0, k_head = 0, v_row = 0, v_head = 0;
  int keys = 0;
  int first_key = 0;   // index in the list of all keys: the bias's column
  int first_tile = 0;  // index in the list of this launch's tiles
  int diagonal = 0;    // causal: query i sees keys up to i + diagonal
  float shift = 0;     // added to the segment's logits, which are exponents of two
};

inline constexpr int kFlashSegments = 32;  // they fill 2.3 of the 4 KiB of kernel parameters

struct FlashArgs {
  const void* q = nullptr;
  int64_t q_row = 0, q_head = 0;
  void* out = nullptr;
  int64_t out_row = 0, out_head = 0, out_part = 0;
  float* lse = nullptr;  // or null
  int64_t lse_row = 0, lse_head = 0, lse_part = 0;
  const float* bias = nullptr;  // or null
  int64_t bias_head = 0, bias_row = 0, bias_key = 0;
  float scale = 1;  // factor of q k^T: the softmax scale times log2(e)
  int queries = 0, share = 1, size = 0;
  int segments = 0, tiles = 0, parts = 1;  // part p takes the p-th share of the tiles
  bool causal = false;
  bool f32_out = false;
  bool aligned = false;  // rows of q, k, v are whole 16-byte pieces at multiples of 16 bytes
  FlashSegment segment[kFlashSegments]{};

  int rows() const { return queries * share; }
};

// Attention with larger heads, by GEMMs. The first `scratch_used` bytes of the queue's scratch hold
// the caller's data. It takes one part, and tiles of kAttentionGemmTile keys.
void attention_gemm(const Stream& stream, DType dtype, int kv_heads, const FlashArgs& args,
                    size_t scratch_used);

// The rows of a block. A block of 16 rows is one warp.
enum class FlashRows { k16 = 16, k64 = 64, k128 = 128 };

// One launch covers args.parts x kv_heads x blocks of rows. dtype is bf16, or f32 (whose blocks
// have 64 rows).
void launch_flash(const Stream& stream, DType dtype, FlashRows rows, int kv_heads,
                  const FlashArgs& args);

// flash_sm90 multiplies with wgmma: compute capability 9.0, heads of up to 128, no bias.
inline constexpr int kFlashSm90Tile = 128;  // keys
inline constexpr int kFlashSm90LargestHead = 128;
// The scratch of a call: the maxima of q, k and v per key/value head, then the packed operands for
// `rows` of FlashArgs and `tiles` of keys, in elements of 1 or 2 bytes.
inline size_t flash_sm90_maxima_bytes(int kv_heads) {
  return (3 * sizeof(uint32_t) * static_cast<size_t>(kv_heads) + 255) / 256 * 256;
}
inline size_t flash_sm90_scratch_bytes(size_t element_bytes, int64_t rows, int64_t tiles,
                                       int kv_heads) {
  return flash_sm90_maxima_bytes(kv_heads) +
         static_cast<size_t>(kv_heads) * 128 * 128 * element_bytes *
             static_cast<size_t>((rows + 127) / 128 + 2 * tiles);
}
// One launch covers args.parts x kv_heads x blocks of 128 rows. q, k, v are bf16; in 8 bits also
// f32. The first `scratch_used` bytes of the queue's scratch hold the caller's data.
void launch_flash_sm90(const Stream& stream, DType dtype, AttentionFormat format, int kv_heads,
                       const FlashArgs& args, size_t scratch_used);

// The instantiations, by padded head size. f32 only has blocks of 64 rows.
void flash_bf16_64(const Stream& stream, FlashRows rows, int kv_heads, const FlashArgs& args);
void flash_bf16_96(const Stream& stream, FlashRows rows, int kv_heads, const FlashArgs& args);
void flash_bf16_128(const Stream& stream, FlashRows rows, int kv_heads, const FlashArgs& args);
void flash_bf16_256(const Stream& stream, FlashRows rows, int kv_heads, const FlashArgs& args);
void flash_f32(const Stream& stream, int kv_heads, const FlashArgs& args);

}  // namespace weft::cuda
