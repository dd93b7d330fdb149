// Flash attention in f32 without tensor cores: 64 rows by 256 threads (or 32 by 128, where 64 rows
// of large heads exceed the shared memory of a block), thread (y, x) has rows 4 y + r. It holds the
// logits of keys x + 16 j and the sums of columns 64 c + 4 x + i. Keys and values pass through one
// buffer. All arithmetic is f32: accuracy is measured against this path.
#include "kernels/cuda/flash_tiles.cuh"
#include "kernels/cuda/launch.cuh"

namespace weft::cuda {

namespace {

template <int kSize_, int kRows_ = 64>
struct Shape {
  static constexpr int kSize = kSize_, kRows = kRows_;
  static constexpr int kThreads = 4 * kRows, kKeys = kSize <= 128 ? 64 : 32;
  static constexpr int kKeysEach = kKeys / 16, kColumns = kSize / 64;
  // Rows start in different banks.
  static constexpr int kPitch = kSize + 4, kPowerPitch = kKeys + 4;
  static constexpr int kSharedBytes = 4 * ((kRows + kKeys) * kPitch + kRows * kPowerPitch);
};

template <class S>
struct State {
  float sum[4][S::kColumns][4];
  float top[4], total[4];
};

__device__ __forceinline__ float part_of(const float4& x, int i) {
  return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}

// Loads four columns of a row, with zeros after the last.
__device__ __forceinline__ float4 load_four(const float* row, int column, const FlashArgs& args) {
  if (args.aligned && column < args.size) return *reinterpret_cast<const float4*>(row + column);
  float4 out = make_float4(0, 0, 0, 0);
  if (column < args.size) out.x = row[column];
  if (column + 1 < args.size) out.y = row[column + 1];
  if (column + 2 < args.size) out.z = row[column + 2];
  if (column + 3 < args.size) out.w = row[column + 3];
  return out;
}

template <class S>
__device__ __forceinline__ void load_queries(float* tile, const FlashArgs& args,
                                             const FlashBlock& block) {
  constexpr int kPieces = S::kSize / 4;
  for (int at = threadIdx.x; at < S::kRows * kPieces; at += S::kThreads) {
    const int row = block.first_row + at / kPieces, column = at % kPieces * 4;
    const float* from = static_cast<const float*>(args.q) + row / args.share * args.q_row +
                        head_of(args, block, row) * args.q_head;
    *reinterpret_cast<float4*>(tile + at / kPieces * S::kPitch + column) =
        row < block.rows ? load_four(from, column, args) : make_float4(0, 0, 0, 0);
  }
}

template <class S>
__device__ __forceinline__ void load_tile(float* tile, const float* head, int64_t row_stride,
                                          int count, const FlashArgs& args) {
  constexpr int kPieces = S::kSize / 4;
  for (int at = threadIdx.x; at < S::kKeys * kPieces; at += S::kThreads) {
    const int row = at / kPieces, column = at % kPieces * 4;
    *reinterpret_cast<float4*>(tile + row * S::kPitch + column) =
        row < count ? load_four(head + row * row_stride, column, args) : make_float4(0, 0, 0, 0);
  }
}

template <class S>
__device__ __forceinline__ void multiply_keys(float (&logit)[4][S::kKeysEach], const float* queries,
                                              const float* keys) {
  const int x = threadIdx.x % 16, y = threadIdx.x / 16;
#pragma unroll
  for (int r = 0; r < 4; ++r)
#pragma unroll
    for (int j = 0; j < S::kKeysEach; ++j) logit[r][j] = 0;
#pragma unroll 2
  for (int e = 0; e < S::kSize; e += 4) {
    float4 key[S::kKeysEach];
#pragma unroll
    for (int j = 0; j < S::kKeysEach; ++j)
      key[j] = *reinterpret_cast<const float4*>(keys + (x + 16 * j) * S::kPitch + e);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const float4 query = *reinterpret_cast<const float4*>(queries + (4 * y + r) * S::kPitch + e);
#pragma unroll
      for (int j = 0; j < S::kKeysEach; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          logit[r][j] = fmaf(part_of(query, i), part_of(key[j], i), logit[r][j]);
    }
  }
}

// Writes the tile's probabilities, relative to the running maximum, into `powers`, and rescales the
// earlier sums to that maximum.
template <class S>
__device__ __forceinline__ void online_softmax(State<S>& state, float (&logit)[4][S::kKeysEach],
                                               float* powers, const FlashArgs& args,
                                               const FlashBlock& block, const FlashCursor& at) {
  const int x = threadIdx.x % 16, y = threadIdx.x / 16;
  const float shift = args.segment[at.segment].shift;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int row = block.first_row + 4 * y + r;
    const int seen = seen_keys(args, block, at, row);
    const float* bias = bias_row(args, block, at, row);
    float top = state.top[r];
#pragma unroll
    for (int j = 0; j < S::kKeysEach; ++j) {
      const int key = x + 16 * j;
      logit[r][j] = fmaf(logit[r][j], args.scale, shift);
      if (bias && key < seen) logit[r][j] = fmaf(bias[key * args.bias_key], kLog2E, logit[r][j]);
      if (key >= seen) logit[r][j] = minus_infinity();
      top = fmaxf(top, logit[r][j]);
    }
    for (int lane = 1; lane < 16; lane *= 2)
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, lane));
    // The maximum is -infinity until a key is seen.
    const float base = top == minus_infinity() ? 0.0f : top;
    const float rescale = fast_exp2(state.top[r] - base);
    state.top[r] = top;
    state.total[r] *= rescale;
#pragma unroll
    for (int c = 0; c < S::kColumns; ++c)
#pragma unroll
      for (int i = 0; i < 4; ++i) state.sum[r][c][i] *= rescale;
#pragma unroll
    for (int j = 0; j < S::kKeysEach; ++j) {
      const float power = fast_exp2(logit[r][j] - base);
      state.total[r] += power;
      powers[(4 * y + r) * S::kPowerPitch + x + 16 * j] = power;
    }
  }
}

template <class S>
__device__ __forceinline__ void add_values(State<S>& state, const float* powers,
                                           const float* values) {
  const int x = threadIdx.x % 16, y = threadIdx.x / 16;
  for (int key = 0; key < S::kKeys; key += 4) {
    float4 power[4];
#pragma unroll
    for (int r = 0; r < 4; ++r)
      power[r] = *reinterpret_cast<const float4*>(powers + (4 * y + r) * S::kPowerPitch + key);
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int c = 0; c < S::kColumns; ++c) {
        const float4 value =
            *reinterpret_cast<const float4*>(values + (key + j) * S::kPitch + 64 * c + 4 * x);
#pragma unroll
        for (int r = 0; r < 4; ++r)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            state.sum[r][c][i] = fmaf(part_of(power[r], j), part_of(value, i), state.sum[r][c][i]);
      }
  }
}

template <class S>
__device__ __forceinline__ void store_rows(State<S>& state, const FlashArgs& args,
                                           const FlashBlock& block) {
  const int x = threadIdx.x % 16, y = threadIdx.x / 16;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    float total = state.total[r];
    for (int lane = 1; lane < 16; lane *= 2) total += __shfl_xor_sync(0xffffffffu, total, lane);
    const int row = block.first_row + 4 * y + r;
    if (row >= block.rows) continue;
    if (x == 0) store_lse(args, block, row, state.top[r], total);
    const float share = total == 0 ? 0.0f : 1.0f / total;
    float* out = static_cast<float*>(args.out) + block.part * args.out_part +
                 row / args.share * args.out_row + head_of(args, block, row) * args.out_head;
#pragma unroll
    for (int c = 0; c < S::kColumns; ++c)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = 64 * c + 4 * x + i;
        if (column < args.size) out[column] = state.sum[r][c][i] * share;
      }
  }
}

template <class S>
__global__ void __launch_bounds__(S::kThreads)
    flash_f32_rows(const __grid_constant__ FlashArgs args) {
  float* const queries = dynamic_shared<float>();
  float* const tile = queries + S::kRows * S::kPitch;
  float* const powers = tile + S::kKeys * S::kPitch;
  const FlashBlock block = flash_block<S::kRows>(args);
  State<S> state;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    state.top[r] = minus_infinity();
    state.total[r] = 0;
#pragma unroll
    for (int c = 0; c < S::kColumns; ++c)
#pragma unroll
      for (int i = 0; i < 4; ++i) state.sum[r][c][i] = 0;
  }
  load_queries<S>(queries, args, block);
  FlashCursor at = first_tile<S::kKeys>(args, block);
  while (skip_to_visible_tile<S::kKeys>(args, block, at)) {
    const FlashSegment& segment = args.segment[at.segment];
    const int count = segment.keys - at.key;
    load_tile<S>(tile,
                 static_cast<const float*>(segment.k) + block.kv_head * segment.k_head +
                     at.key * segment.k_row,
                 segment.k_row, count, args);
    __syncthreads();
    float logit[4][S::kKeysEach];
    multiply_keys<S>(logit, queries, tile);
    online_softmax(state, logit, powers, args, block, at);
    __syncthreads();  // no thread reads the keys any more
    load_tile<S>(tile,
                 static_cast<const float*>(segment.v) + block.kv_head * segment.v_head +
                     at.key * segment.v_row,
                 segment.v_row, count, args);
    __syncthreads();
    add_values(state, powers, tile);
    __syncthreads();  // no thread reads the values and the powers any more
    at.key += S::kKeys;
  }
  store_rows(state, args, block);
}

template <class S>
void run(const Stream& stream, int kv_heads, const FlashArgs& args) {
  launch(stream,
         {.grid = dim3(blocks_for(args.rows(), S::kRows), kv_heads, args.parts),
          .block = dim3(S::kThreads),
          .shared = S::kSharedBytes},
         flash_f32_rows<S>, args);
}

}  // namespace

void flash_f32(const Stream& stream, int kv_heads, const FlashArgs& args) {
  if (args.size <= 64) return run<Shape<64>>(stream, kv_heads, args);
  if (args.size <= 128) return run<Shape<128>>(stream, kv_heads, args);
  const bool fits = cuda_queue(stream).properties().shared_per_block >= Shape<256>::kSharedBytes;
  (fits ? run<Shape<256>> : run<Shape<256, 32>>)(stream, kv_heads, args);
}

}  // namespace weft::cuda
