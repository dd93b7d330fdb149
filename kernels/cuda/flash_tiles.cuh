#pragma once
// The flash kernels share these functions, which say which tiles of keys a block of rows walks
// over.
#include <cuda_runtime.h>

#include "kernels/cuda/flash.h"

namespace weft::cuda {

constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

__device__ __forceinline__ float minus_infinity() { return __uint_as_float(0xff800000u); }

// A block covers rows [first_row, first_row + kRows) of the launch, up to its last row.
struct FlashBlock {
  int first_row = 0, rows = 0;          // of the block, of the launch
  int first_query = 0, last_query = 0;  // of the block
  int kv_head = 0, part = 0;
  int end_tile = 0;
};

// A cursor is a tile of keys: [key, key + kKeys) of a segment.
struct FlashCursor {
  int segment, key;
};

template <int kRows>
__device__ __forceinline__ FlashBlock flash_block(const FlashArgs& args) {
  FlashBlock block;
  // Under a mask, blocks of late rows see the most keys; they start first.
  const int index = args.causal ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
  block.first_row = index * kRows;
  block.rows = args.queries * args.share;
  const int end = min(block.first_row + kRows, block.rows);
  block.first_query = block.first_row / args.share;
  block.last_query = (end - 1) / args.share;
  block.kv_head = blockIdx.y;
  block.part = blockIdx.z;
  block.end_tile =
      static_cast<int>(static_cast<int64_t>(args.tiles) * (block.part + 1) / args.parts);
  return block;
}

// Moves the cursor to the first tile, from its place on, of which a row of the block sees a key.
// Returns false if the block's part has no such tile.
template <int kKeys>
__device__ __forceinline__ bool skip_to_visible_tile(const FlashArgs& args, const FlashBlock& block,
                                                     FlashCursor& at) {
  while (at.segment < args.segments) {
    const FlashSegment& segment = args.segment[at.segment];
    const bool hidden = args.causal && at.key > block.last_query + segment.diagonal;
    if (at.key < segment.keys && !hidden)
      return segment.first_tile + at.key / kKeys < block.end_tile;
    ++at.segment;
    at.key = 0;
  }
  return false;
}

template <int kKeys>
__device__ __forceinline__ FlashCursor first_tile(const FlashArgs& args, const FlashBlock& block) {
  const int tile = static_cast<int>(static_cast<int64_t>(args.tiles) * block.part / args.parts);
  int segment = 0;
  while (segment + 1 < args.segments && args.segment[segment + 1].first_tile <= tile) ++segment;
  return {segment, args.segments > 0 ? (tile - args.segment[segment].first_tile) * kKeys : 0};
}

// True if some row of the block does not see some key of the tile.
template <int kKeys>
__device__ __forceinline__ bool cut(const FlashArgs& args, const FlashBlock& block,
                                    const FlashCursor& at) {
  const FlashSegment& segment = args.segment[at.segment];
  return at.key + kKeys > segment.keys ||
         (args.causal && at.key + kKeys - 1 > block.first_query + segment.diagonal);
}

// Returns how many keys of the tile, from its first on, `row` sees; 0 for rows after the last.
__device__ __forceinline__ int seen_keys(const FlashArgs& args, const FlashBlock& block,
                                         const FlashCursor& at, int row) {
  if (row >= block.rows) return 0;
  const FlashSegment& segment = args.segment[at.segment];
  const int keys = segment.keys - at.key;
  return args.causal ? min(keys, row / args.share + segment.diagonal + 1 - at.key) : keys;
}

// Returns the head of q, out, lse and bias that `row` belongs to.
__device__ __forceinline__ int head_of(const FlashArgs& args, const FlashBlock& block, int row) {
  return block.kv_head * args.share + row % args.share;
}

// Returns the bias of `row`'s logits for the tile's first key, or null.
__device__ __forceinline__ const float* bias_row(const FlashArgs& args, const FlashBlock& block,
                                                 const FlashCursor& at, int row) {
  if (!args.bias || row >= block.rows) return nullptr;
  return args.bias + head_of(args, block, row) * args.bias_head + row / args.share * args.bias_row +
         (args.segment[at.segment].first_key + at.key) * args.bias_key;
}

// Stores the natural log-sum-exp of a row. `top` is its largest logit, as an exponent of two; `sum`
// is its sum of powers of two relative to 2^top.
__device__ __forceinline__ void store_lse(const FlashArgs& args, const FlashBlock& block, int row,
                                          float top, float sum) {
  if (args.lse)
    args.lse[block.part * args.lse_part + head_of(args, block, row) * args.lse_head +
             row / args.share * args.lse_row] =
        sum == 0 ? minus_infinity() : top * kLn2 + logf(sum);
}

}  // namespace weft::cuda
