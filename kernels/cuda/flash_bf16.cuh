#pragma once
// Flash attention in bf16 by mma (Dao 2023, FlashAttention-2): a warp owns kFragments x 16 rows and
// keeps their logits, sums and softmax state in registers. There is one buffer for a tile of keys
// and one for a tile of values: values are loaded while the logits are computed, the next keys
// while the values are multiplied. Softmax is in base 2; the sums use probabilities rounded to
// bf16, their total uses unrounded ones.
//
// Registers per thread (sm_80 / sm_90a), and blocks per multiprocessor with its 64 K registers:
//   columns   128 rows         64 rows         16 rows
//   64        168 / 168 x 3    128 / 128 x 4   206 / 156
//   96        254 / 210 x 2    168 / 166 x 3   218 / 168
//   128       254 / 255 x 2    168 / 168 x 3   229 / 182
//   256       254 / 254 x 1    254 / 254 x 2   254 / 254
// Only 128 columns x 64 rows on sm_80 spills, 12 bytes. Two fragments share the load of a tile's
// matrices by 32 rows: 48 matrix loads for 128 mma; with one fragment it is 72 for 128.
// Shared memory at 128 columns: 52 KB (128 rows or 64), 39 KB (16 rows).
#include "kernels/cuda/flash_tiles.cuh"
#include "kernels/cuda/launch.cuh"

namespace weft::cuda {

// kBlocks blocks of a shape run on a multiprocessor at a time.
template <int kSize_, int kWarps_, int kFragments_, int kBlocks_>
struct FlashShape {
  static constexpr int kSize = kSize_, kWarps = kWarps_, kFragments = kFragments_;
  static constexpr int kBlocks = kBlocks_;
  // So many loads of a tile are in flight; more would spill registers.
  static constexpr int kUnroll = kFragments == 1 ? 8 : 4;
  static constexpr int kThreads = 32 * kWarps, kRows = 16 * kWarps * kFragments;
  static constexpr int kKeys = kSize <= 128 && kFragments == 1 ? 64 : 32;
  // A row is an odd number of 16 bytes, so that 16-byte pieces of eight rows lie in different
  // banks.
  static constexpr int kPitch = kSize + 8;
  static constexpr int kSharedBytes = (kRows + 2 * kKeys) * kPitch * 2;
};

// The registers of a thread: rows 16 f + lane / 4 + 8 h of the warp (fragment f, half h), columns 8
// n + 2 (lane % 4) + c at [f][n][2 h + c].
template <class Shape>
struct FlashState {
  float logit[Shape::kFragments][Shape::kKeys / 8][4];
  float sum[Shape::kFragments][Shape::kSize / 8][4];
  float top[Shape::kFragments][2], total[Shape::kFragments][2];
};

// Loads 16 bytes of a tile; zeros if !real.
__device__ __forceinline__ void load_piece(bf16* to, const bf16* head, int64_t offset, int column,
                                           const FlashArgs& args, bool real) {
  real = real && column < args.size;
  const bf16* from = head + (real ? offset + column : 0);
  if (args.aligned) {
    copy_async16(to, from, real);
  } else {
    for (int x = 0; x < 8; ++x) {
      bf16 value;
      value.bits = 0;
      to[x] = real && column + x < args.size ? from[x] : value;
    }
  }
}

// Loads `count` rows of one head, from `head` on, as a tile of kKeys rows, with zeros after them.
template <class Shape>
__device__ __forceinline__ void load_tile(bf16* tile, const void* head, int64_t row_stride,
                                          int count, const FlashArgs& args) {
  constexpr int kPieces = Shape::kSize / 8;
#pragma unroll Shape::kUnroll
  for (int at = threadIdx.x; at < Shape::kKeys * kPieces; at += Shape::kThreads) {
    const int row = at / kPieces, column = at % kPieces * 8;
    load_piece(tile + row * Shape::kPitch + column, static_cast<const bf16*>(head),
               row * row_stride, column, args, row < count);
  }
}

template <class Shape>
__device__ __forceinline__ void load_queries(bf16* tile, const FlashArgs& args,
                                             const FlashBlock& block) {
  constexpr int kPieces = Shape::kSize / 8;
  for (int at = threadIdx.x; at < Shape::kRows * kPieces; at += Shape::kThreads) {
    const int row = block.first_row + at / kPieces, column = at % kPieces * 8;
    const int64_t offset = row / args.share * args.q_row + head_of(args, block, row) * args.q_head;
    load_piece(tile + at / kPieces * Shape::kPitch + column, static_cast<const bf16*>(args.q),
               offset, column, args, row < block.rows);
  }
}

template <class Shape>
__device__ __forceinline__ void load_keys(bf16* tile, const FlashArgs& args,
                                          const FlashBlock& block, const FlashCursor& at) {
  const FlashSegment& segment = args.segment[at.segment];
  load_tile<Shape>(
      tile,
      static_cast<const bf16*>(segment.k) + block.kv_head * segment.k_head + at.key * segment.k_row,
      segment.k_row, segment.keys - at.key, args);
  copy_async_commit();
}

template <class Shape>
__device__ __forceinline__ void load_values(bf16* tile, const FlashArgs& args,
                                            const FlashBlock& block, const FlashCursor& at) {
  const FlashSegment& segment = args.segment[at.segment];
  load_tile<Shape>(
      tile,
      static_cast<const bf16*>(segment.v) + block.kv_head * segment.v_head + at.key * segment.v_row,
      segment.v_row, segment.keys - at.key, args);
  copy_async_commit();
}

// Waits for this thread's copies, then, by the barrier, for those of the whole block.
__device__ __forceinline__ void wait_tile() {
  copy_async_wait<0>();
  __syncthreads();
}

// The row and column of the 8x8 matrices whose address this lane gives to load_matrices. Matrices 1
// and 3 lie below 0 and 2 for queries and for transposed values; they lie beside them for keys.
__device__ __forceinline__ int below_row() { return threadIdx.x / 8 % 2 * 8 + threadIdx.x % 8; }
__device__ __forceinline__ int below_column() { return threadIdx.x / 16 % 2 * 8; }
__device__ __forceinline__ int beside_row() { return threadIdx.x / 16 % 2 * 8 + threadIdx.x % 8; }
__device__ __forceinline__ int beside_column() { return threadIdx.x / 8 % 2 * 8; }

// Returns the first row, in the block, of fragment f of this thread's warp.
template <class Shape>
__device__ __forceinline__ int fragment_row(int f) {
  return (threadIdx.x / 32 * Shape::kFragments + f) * 16;
}

// logit = q k^T of the tile.
template <class Shape>
__device__ __forceinline__ void multiply_keys(FlashState<Shape>& state, const bf16* queries,
                                              const bf16* keys) {
  constexpr int kPitch = Shape::kPitch;
#pragma unroll
  for (int f = 0; f < Shape::kFragments; ++f)
#pragma unroll
    for (int n = 0; n < Shape::kKeys / 8; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) state.logit[f][n][c] = 0;
#pragma unroll
  for (int e = 0; e < Shape::kSize / 16; ++e) {
    uint32_t query[Shape::kFragments][4];
#pragma unroll
    for (int f = 0; f < Shape::kFragments; ++f)
      load_matrices(query[f], queries + (fragment_row<Shape>(f) + below_row()) * kPitch + e * 16 +
                                  below_column());
#pragma unroll
    for (int n = 0; n < Shape::kKeys / 16; ++n) {
      uint32_t key[4];
      load_matrices(key, keys + (n * 16 + beside_row()) * kPitch + e * 16 + beside_column());
      const uint32_t low[2] = {key[0], key[1]}, high[2] = {key[2], key[3]};
#pragma unroll
      for (int f = 0; f < Shape::kFragments; ++f) {
        multiply_bf16(state.logit[f][2 * n], query[f], low);
        multiply_bf16(state.logit[f][2 * n + 1], query[f], high);
      }
    }
  }
}

// Scales the logits and adds their bias.
template <class Shape>
__device__ __forceinline__ void scale_logits(FlashState<Shape>& state, const FlashArgs& args,
                                             const FlashBlock& block, const FlashCursor& at) {
  const int lane = threadIdx.x % 32;
  const float shift = args.segment[at.segment].shift;
#pragma unroll
  for (int f = 0; f < Shape::kFragments; ++f)
#pragma unroll
    for (int n = 0; n < Shape::kKeys / 8; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c)
        state.logit[f][n][c] = fmaf(state.logit[f][n][c], args.scale, shift);
  if (!args.bias) return;
#pragma unroll
  for (int f = 0; f < Shape::kFragments; ++f)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = block.first_row + fragment_row<Shape>(f) + lane / 4 + 8 * h;
      const int seen = seen_keys(args, block, at, row);
      const float* bias = bias_row(args, block, at, row);
#pragma unroll
      for (int n = 0; n < Shape::kKeys / 8; ++n)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int key = 8 * n + lane % 4 * 2 + c;
          float& logit = state.logit[f][n][2 * h + c];
          if (key < seen) logit = fmaf(bias[key * args.bias_key], kLog2E, logit);
        }
    }
}

// Sets logits to -infinity where a row does not see a key.
template <class Shape>
__device__ __forceinline__ void mask(FlashState<Shape>& state, const FlashArgs& args,
                                     const FlashBlock& block, const FlashCursor& at) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int f = 0; f < Shape::kFragments; ++f)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = block.first_row + fragment_row<Shape>(f) + lane / 4 + 8 * h;
      const int seen = seen_keys(args, block, at, row) - lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < Shape::kKeys / 8; ++n)
#pragma unroll
        for (int c = 0; c < 2; ++c)
          if (8 * n + c >= seen) state.logit[f][n][2 * h + c] = minus_infinity();
    }
}

// Raises each row's running maximum to the tile's largest logit, and rescales the earlier sums to
// it.
template <class Shape>
__device__ __forceinline__ void raise_top(FlashState<Shape>& state, float scale, float shift) {
  float rescale[Shape::kFragments][2];
  bool any = false;
#pragma unroll
  for (int f = 0; f < Shape::kFragments; ++f)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float high = minus_infinity();
#pragma unroll
      for (int n = 0; n < Shape::kKeys / 8; ++n)
        high = fmaxf(high, fmaxf(state.logit[f][n][2 * h], state.logit[f][n][2 * h + 1]));
      high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 1));
      high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 2));
      const float top = fmaxf(state.top[f][h], fmaf(high, scale, shift));
      rescale[f][h] = top == state.top[f][h] ? 1.0f : fast_exp2(state.top[f][h] - top);
      any = any || rescale[f][h] != 1.0f;
      state.top[f][h] = top;
    }
  if (!__any_sync(0xffffffffu, any)) return;  // true for most tiles
#pragma unroll
  for (int f = 0; f < Shape::kFragments; ++f)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      state.total[f][h] *= rescale[f][h];
#pragma unroll
      for (int n = 0; n < Shape::kSize / 8; ++n) {
        state.sum[f][n][2 * h] *= rescale[f][h];
        state.sum[f][n][2 * h + 1] *= rescale[f][h];
      }
    }
}

// Turns logit * scale + shift into probabilities relative to the running maximum.
template <class Shape>
__device__ __forceinline__ void online_softmax(FlashState<Shape>& state, float scale, float shift) {
  raise_top(state, scale, shift);
#pragma unroll
  for (int f = 0; f < Shape::kFragments; ++f)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float top = state.top[f][h];
      // The maximum is -infinity until a key is seen.
      const float offset = shift - (top == minus_infinity() ? 0.0f : top);
#pragma unroll
      for (int n = 0; n < Shape::kKeys / 8; ++n)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& logit = state.logit[f][n][2 * h + c];
          logit = fast_exp2(fmaf(logit, scale, offset));
          state.total[f][h] += logit;
        }
    }
}

// sum += probabilities v of the tile.
template <class Shape>
__device__ __forceinline__ void add_values(FlashState<Shape>& state, const bf16* values) {
#pragma unroll
  for (int k = 0; k < Shape::kKeys / 16; ++k) {
    uint32_t left[Shape::kFragments][4];
#pragma unroll
    for (int f = 0; f < Shape::kFragments; ++f)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float* pair = state.logit[f][2 * k + c / 2] + c % 2 * 2;
        left[f][c] = bf16_pair(pair[0], pair[1]);
      }
#pragma unroll
    for (int n = 0; n < Shape::kSize / 16; ++n) {
      uint32_t value[4];
      load_matrices_transposed(
          value, values + (k * 16 + below_row()) * Shape::kPitch + n * 16 + below_column());
      const uint32_t low[2] = {value[0], value[1]}, high[2] = {value[2], value[3]};
#pragma unroll
      for (int f = 0; f < Shape::kFragments; ++f) {
        multiply_bf16(state.sum[f][2 * n], left[f], low);
        multiply_bf16(state.sum[f][2 * n + 1], left[f], high);
      }
    }
  }
}

template <class Shape>
__device__ __forceinline__ void store_rows(FlashState<Shape>& state, const FlashArgs& args,
                                           const FlashBlock& block) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int f = 0; f < Shape::kFragments; ++f)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float total = state.total[f][h];
      total += __shfl_xor_sync(0xffffffffu, total, 1);
      total += __shfl_xor_sync(0xffffffffu, total, 2);
      const int row = block.first_row + fragment_row<Shape>(f) + lane / 4 + 8 * h;
      if (row >= block.rows) continue;
      if (lane % 4 == 0) store_lse(args, block, row, state.top[f][h], total);
      const float share = total == 0 ? 0.0f : 1.0f / total;
      const int64_t offset = block.part * args.out_part + row / args.share * args.out_row +
                             head_of(args, block, row) * args.out_head;
#pragma unroll
      for (int n = 0; n < Shape::kSize / 8; ++n)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int column = 8 * n + lane % 4 * 2 + c;
          if (column >= args.size) continue;
          const float value = total == 0 ? 0.0f : state.sum[f][n][2 * h + c] * share;
          if (args.f32_out)
            static_cast<float*>(args.out)[offset + column] = value;
          else
            static_cast<bf16*>(args.out)[offset + column] = to_bf16(value);
        }
    }
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    flash_bf16(const __grid_constant__ FlashArgs args) {
  bf16* const queries = dynamic_shared<bf16>();
  bf16* const keys = queries + Shape::kRows * Shape::kPitch;
  bf16* const values = keys + Shape::kKeys * Shape::kPitch;
  const FlashBlock block = flash_block<Shape::kRows>(args);
  FlashState<Shape> state;
#pragma unroll
  for (int f = 0; f < Shape::kFragments; ++f) {
#pragma unroll
    for (int n = 0; n < Shape::kSize / 8; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) state.sum[f][n][c] = 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) state.top[f][h] = minus_infinity(), state.total[f][h] = 0;
  }
  FlashCursor at = first_tile<Shape::kKeys>(args, block);
  bool more = skip_to_visible_tile<Shape::kKeys>(args, block, at);
  if (more) {
    load_queries<Shape>(queries, args, block);
    load_keys<Shape>(keys, args, block, at);
  }
  while (more) {
    wait_tile();  // the queries and the keys are here, and no thread reads the values any more
    load_values<Shape>(values, args, block, at);
    multiply_keys(state, queries, keys);
    // Without bias, the scale is applied in the exponential.
    const bool plain = !args.bias && args.scale > 0;
    if (!plain) scale_logits(state, args, block, at);
    if (cut<Shape::kKeys>(args, block, at)) mask(state, args, block, at);
    online_softmax(state, plain ? args.scale : 1.0f, plain ? args.segment[at.segment].shift : 0.0f);
    wait_tile();  // the values are here, and no thread reads the keys any more
    at.key += Shape::kKeys;
    more = skip_to_visible_tile<Shape::kKeys>(args, block, at);
    if (more) load_keys<Shape>(keys, args, block, at);
    add_values(state, values);
  }
  store_rows(state, args, block);
}

template <class Shape>
void launch_flash_bf16(const Stream& stream, int kv_heads, const FlashArgs& args) {
  launch(stream,
         {.grid = dim3(blocks_for(args.rows(), Shape::kRows), kv_heads, args.parts),
          .block = dim3(Shape::kThreads),
          .shared = Shape::kSharedBytes},
         flash_bf16<Shape>, args);
}

}  // namespace weft::cuda
