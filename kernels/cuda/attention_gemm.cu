// Attention of heads that are too large for the flash kernels (a VAE has one head of its whole
// width), by the library's GEMM: a strip of queries against all keys at a time, with the strip's
// logits in scratch. Every segment begins at a multiple of kAttentionGemmTile columns; the columns
// between segments are zeros in the probabilities and in the values.
#include <algorithm>

#include "kernels/cuda/flash.h"
#include "kernels/cuda/flash_tiles.cuh"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/launch.cuh"

namespace weft::cuda {

namespace {

constexpr int kTile = kAttentionGemmTile, kThreads = 256, kWarps = kThreads / 32;

// Transposes one head's values: [size, columns] <- [keys, size] of every segment.
template <class T>
__global__ void __launch_bounds__(kThreads)
    transpose_values(const __grid_constant__ FlashArgs args, int kv_head, T* out, int columns) {
  __shared__ T tile[32][33];
  const int first_column = blockIdx.x * 32, first_row = blockIdx.y * 32;
  const int x = threadIdx.x % 32, y = threadIdx.x / 32;
  // Segments begin and end at multiples of kTile, so the block's columns have one segment.
  int at = 0;
  while (at + 1 < args.segments && args.segment[at + 1].first_tile * kTile <= first_column) ++at;
  const FlashSegment& segment = args.segment[at];
  for (int j = y; j < 32; j += kWarps) {
    const int key = first_column + j - segment.first_tile * kTile;
    T value = from_float<T>(0.0f);
    if (at < args.segments && key < segment.keys && first_row + x < args.size)
      value = static_cast<const T*>(
          segment.v)[key * segment.v_row + kv_head * segment.v_head + first_row + x];
    tile[j][x] = value;
  }
  __syncthreads();
  for (int j = y; j < 32; j += kWarps)
    if (first_row + j < args.size)
      out[static_cast<int64_t>(first_row + j) * columns + first_column + x] = tile[x][j];
}

// Returns the sum (kSum) or the maximum over the block's threads.
template <bool kSum>
__device__ __forceinline__ float over_block(float value, float* shared) {
  for (int lane = 16; lane > 0; lane /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, value, lane);
    value = kSum ? value + other : fmaxf(value, other);
  }
  __syncthreads();  // `shared` is free again
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  value = shared[0];
  for (int warp = 1; warp < kWarps; ++warp)
    value = kSum ? value + shared[warp] : fmaxf(value, shared[warp]);
  return value;
}

// Consecutive queries of one query head: the head-th of those that share the key/value head.
struct Strip {
  int kv_head, head, first_query;
};

// Turns rows of logits into probabilities rounded to T; one block per row. Every thread keeps to
// its own columns. T's rows may overlap the logits.
template <class T>
__global__ void __launch_bounds__(kThreads)
    softmax_rows(const __grid_constant__ FlashArgs args, Strip strip, float* logits, T* powers,
                 int columns) {
  __shared__ float shared[kWarps];
  const int row = (strip.first_query + blockIdx.x) * args.share + strip.head;
  const FlashBlock block{
      .first_row = row, .rows = args.queries * args.share, .kv_head = strip.kv_head};
  float* const line = logits + static_cast<int64_t>(blockIdx.x) * columns;
  T* const out = powers + static_cast<int64_t>(blockIdx.x) * columns;
  float top = minus_infinity();
  for (int s = 0; s < args.segments; ++s) {
    const FlashCursor at{s, 0};
    const int seen = seen_keys(args, block, at, row);
    const float* const bias = bias_row(args, block, at, row);
    float* const part = line + args.segment[s].first_tile * kTile;
    for (int key = threadIdx.x; key < seen; key += kThreads) {
      float logit = fmaf(part[key], args.scale, args.segment[s].shift);
      if (bias) logit = fmaf(bias[key * args.bias_key], kLog2E, logit);
      part[key] = logit;
      top = fmaxf(top, logit);
    }
  }
  top = over_block<false>(top, shared);
  // The maximum is -infinity if no key is seen.
  const float base = top == minus_infinity() ? 0.0f : top;
  float total = 0;
  for (int s = 0; s < args.segments; ++s) {
    const int seen = seen_keys(args, block, {s, 0}, row);
    float* const part = line + args.segment[s].first_tile * kTile;
    for (int key = threadIdx.x; key < seen; key += kThreads) {
      part[key] = fast_exp2(part[key] - base);
      total += part[key];
    }
  }
  total = over_block<true>(total, shared);
  const float share = total == 0 ? 0.0f : 1.0f / total;
  for (int s = 0; s < max(args.segments, 1); ++s) {
    const int seen = args.segments > 0 ? seen_keys(args, block, {s, 0}, row) : 0;
    const int begin = args.segments > 0 ? args.segment[s].first_tile * kTile : 0;
    const int end = s + 1 < args.segments ? args.segment[s + 1].first_tile * kTile : columns;
    for (int key = threadIdx.x; key < end - begin; key += kThreads)
      out[begin + key] = from_float<T>(key < seen ? line[begin + key] * share : 0.0f);
  }
  if (threadIdx.x == 0) store_lse(args, block, row, top, total);
}

void multiply(const Stream& stream, const Gemm& call) {
  if (!gemm(stream, call))
    throw Error(ErrorKind::kInternal, "attention: the library has no GEMM of " +
                                          std::to_string(call.m) + " x " + std::to_string(call.n) +
                                          " x " + std::to_string(call.k));
}

template <class T>
class GemmAttention {
 public:
  GemmAttention(const Stream& stream, const FlashArgs& args, size_t scratch_used)
      : stream_(stream), args_(args), columns_(std::max(args.tiles, 1) * kTile) {
    const AttentionGemmPlaces places =
        attention_gemm_places(args.queries, columns_, args.size, kType, scratch_used);
    strip_ = static_cast<int>(places.strip);
    used_ = places.used;
    char* scratch = static_cast<char*>(cuda_queue(stream).scratch(used_ + kGemmWorkspace));
    logits_ = reinterpret_cast<float*>(scratch + places.logits);
    powers_ = reinterpret_cast<T*>(scratch + places.powers);
    values_ = reinterpret_cast<T*>(scratch + places.values);
  }

  void run(int kv_head) {
    launch(stream_,
           {.grid = dim3(columns_ / 32, blocks_for(args_.size, 32)), .block = dim3(kThreads)},
           transpose_values<T>, args_, kv_head, values_, columns_);
    for (int head = 0; head < args_.share; ++head)
      for (int query = 0; query < args_.queries; query += strip_)
        attend(kv_head, head, query, std::min(strip_, args_.queries - query));
  }

 private:
  static constexpr DType kType = DTypeOf<T>::value;

  GemmMatrix matrix(const void* data, int64_t offset, int64_t row_stride) const {
    return {.data = static_cast<T*>(const_cast<void*>(data)) + offset,
            .dtype = kType,
            .row_stride = row_stride};
  }

  void attend(int kv_head, int head, int query, int rows) {
    const int64_t q_head = int64_t{kv_head} * args_.share + head;
    for (int s = 0; s < args_.segments; ++s) {
      const FlashSegment& segment = args_.segment[s];
      multiply(stream_,
               {.m = rows,
                .n = segment.keys,
                .k = args_.size,
                .x = matrix(args_.q, query * args_.q_row + q_head * args_.q_head, args_.q_row),
                .w = matrix(segment.k, kv_head * segment.k_head, segment.k_row),
                .out = {.data = logits_ + segment.first_tile * kTile,
                        .dtype = DType::kF32,
                        .row_stride = columns_},
                .scratch_used = used_});
    }
    launch(stream_, {.grid = dim3(rows), .block = dim3(kThreads)}, softmax_rows<T>, args_,
           Strip{kv_head, head, query}, logits_, powers_, columns_);
    const int64_t to = query * args_.out_row + q_head * args_.out_head;
    GemmMatrix out = matrix(args_.out, args_.f32_out ? 0 : to, args_.out_row);
    if (args_.f32_out)
      out = {.data = static_cast<float*>(args_.out) + to,
             .dtype = DType::kF32,
             .row_stride = args_.out_row};
    multiply(stream_, {.m = rows,
                       .n = args_.size,
                       .k = columns_,
                       .x = matrix(powers_, 0, columns_),
                       .w = matrix(values_, 0, columns_),
                       .out = out,
                       .scratch_used = used_});
  }

  const Stream& stream_;
  const FlashArgs& args_;
  int columns_, strip_ = 0;
  size_t used_ = 0;
  float* logits_ = nullptr;
  T *powers_ = nullptr, *values_ = nullptr;
};

}  // namespace

void attention_gemm(const Stream& stream, DType dtype, int kv_heads, const FlashArgs& args,
                    size_t scratch_used) {
  visit_dtype(dtype, [&](auto tag) {
    GemmAttention<decltype(tag)> heads(stream, args, scratch_used);
    for (int head = 0; head < kv_heads; ++head) heads.run(head);
  });
}

}  // namespace weft::cuda
