#pragma once
// These functions decide how the attention kernels cut a call. device_plan.cc predicts scratch by
// the same functions. FlashArgs is passed to the flash kernels by value. A row is one query of one
// query head. The rows of the `share` query heads of a key/value head follow each other, so that
// they share its tiles: row r is query r / share, head r % share of the group.
#include <algorithm>
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/device_plan.h"

namespace weft::cuda {

inline constexpr int64_t kLibraryRows = 64;  // with fewer queries a call only reads keys and values
// From this many multiplications of q k^T on, a call goes to the library: 4 Gflop in all. An H200
// takes 25 us there for 4096 queries, 24 heads of 128 and 120 keys, and 71 to 92 us in our kernels.
// Preparing a shape costs the library about half a second of host time, once. The same threshold
// holds for flash_sm90, whose operands are first copied into tiles.
inline constexpr int64_t kLargeAttention = int64_t{1} << 30;
// From this many keys on, flash_sm90 comes before the library. On an H200, with 12 heads of 128 and
// cuDNN 9.19, it does 578 TFLOP/s at 32,760 keys where the library does 595, and 601 at 75,600
// where the library does 561 (tests/bench/results/gpu.jsonl).
inline constexpr int64_t kLongAttention = 49152;
// The largest head size that the library is asked for. With heads of 200 and a negative scale,
// cuDNN 9.19 gave infinite sums on an H200.
inline constexpr int kLibraryLargest = 128;
inline constexpr int kFlashLargest = 256;  // the largest head size; larger heads use attention_gemm

// The rows of a block, where `rows` counts the queries of all query heads that share a key/value
// head.
inline int flash_rows(DType dtype, int64_t rows, int64_t kv_heads, int multiprocessors) {
  if (dtype == DType::kF32) return 64;
  if (rows <= 16) return 16;
  return (rows + 127) / 128 * kv_heads >= 2 * multiprocessors ? 128 : 64;
}
inline int flash_tile_keys(DType dtype, int rows, int64_t size) {
  return size > 128 || (dtype == DType::kBF16 && rows == 128) ? 32 : 64;
}
// The blocks that are resident on a multiprocessor at once.
inline int flash_blocks(int rows, bool sm90) { return rows == 16 ? 8 : sm90 ? 1 : 2; }
// The parts in which the tiles are processed (split-K).
inline int64_t flash_parts(int64_t blocks, int64_t tiles, int64_t resident_blocks) {
  constexpr int64_t kMostParts = 64, kTilesOfPart = 2;
  return std::max<int64_t>(std::min({resident_blocks / blocks, tiles / kTilesOfPart, kMostParts}),
                           1);
}
// The log-sum-exps of a call to the library whose last key is added after it (merge_key.h).
inline size_t attention_lse_bytes(int64_t queries, int64_t heads) {
  return (static_cast<size_t>(queries * heads) * sizeof(float) + 255) / 256 * 256;
}
// The floats of one attention state: out [N, A, E] and lse [A, N].
inline int64_t flash_state_floats(int64_t queries, int64_t heads, int64_t size) {
  return (queries * heads * (size + 1) + 63) / 64 * 64;
}

inline constexpr int kAttentionGemmTile = 64;  // keys of a tile of attention_gemm
struct AttentionGemmPlaces {
  int64_t strip = 0;  // queries at a time
  size_t logits = 0, powers = 0, values = 0, used = 0;
};
// The scratch of attention_gemm after the caller's `before` bytes. `columns` counts the keys, each
// segment rounded up to whole tiles.
inline AttentionGemmPlaces attention_gemm_places(int64_t queries, int64_t columns, int64_t size,
                                                 DType dtype, size_t before) {
  constexpr int64_t kLogitBytes = int64_t{64} << 20;  // a large L2 holds the logits of a strip
  const int64_t fit = kLogitBytes / (columns * 4) / 64 * 64;
  AttentionGemmPlaces made;
  made.strip = std::min(std::max<int64_t>(fit, 64), queries);
  ScratchPlaces places(before);
  made.logits = places.take(made.strip * columns * 4);
  // In f32 the probabilities overwrite the logits.
  made.powers = dtype == DType::kF32 ? made.logits : places.take(made.strip * columns * 2);
  made.values = places.take(size * columns * static_cast<int64_t>(size_of(dtype)));
  made.used = places.used();
  return made;
}

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
