// Flash attention in 8 bits, for compute capability 9.0: q, k and v become e4m3 in tiles as the
// products want them (the transposed values), then two warpgroups of 64 rows each walk over tiles
// of 128 keys, one at its products while the other is at its exponentials. A tile's sums are made
// anew and added in f32, since the tensor cores of e4m3 add with 14 bits alone (DeepSeek-V3,
// 2024, 3.3.2).
//
// The copy engine fills kStages pairs of a tile of keys and one of values; a warp gives a pair back
// when it has read it, so the warpgroups need not walk in step.
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/flash_tiles.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/fp8.h"

namespace weft::cuda {

namespace {

constexpr int kRows = 128, kKeys = kFlashFp8Tile, kColumns = 128, kThreads = 256;
constexpr int kTileBytes = 128 * 128;  // of rows, keys or values
constexpr int kStages = 6, kAhead = 4;
constexpr int kTilesOfShared = 1 + 2 * kStages, kSwizzled = 1024;
// The first tile begins at a multiple of kSwizzled.
constexpr size_t kSharedBytes = kTilesOfShared * kTileBytes + kSwizzled + 2 * kStages * 8;
constexpr float kProbabilityBits = 8;  // 256 stands for 1

// A launch's numbers, in scratch. Tile t of key/value head h is the (h x tiles + t)-th.
struct Eight {
  uint32_t* most = nullptr;  // [q, k, v][kv_heads] bits of the largest magnitudes
  uint8_t *q = nullptr, *k = nullptr, *v = nullptr;
  int kv_heads = 0, row_blocks = 0;
};
enum Operand { kQ, kK, kV };

__device__ __forceinline__ float largest(const Eight& eight, Operand operand, int kv_head) {
  return __uint_as_float(eight.most[operand * eight.kv_heads + kv_head]);
}

// What a number stands for; NaN where an operand held what is not finite.
__device__ __forceinline__ float scale_of(float most) {
  return most <= 3.4028234e38f ? power_of_two(e4m3_exponent(most)) : __uint_as_float(0x7fc00000u);
}

// Rows of a tile that are there, and where they lie: row r at data + r x stride.
template <class T>
struct TileRows {
  const T* data = nullptr;
  int64_t stride = 0;
  int count = 0;
};

template <class T>
__device__ __forceinline__ TileRows<T> tile_rows(const FlashArgs& args, bool values, int tile,
                                                 int kv_head) {
  int s = 0;
  while (s + 1 < args.segments && args.segment[s + 1].first_tile <= tile) ++s;
  const FlashSegment& segment = args.segment[s];
  const int key = (tile - segment.first_tile) * kKeys;
  const T* const data = static_cast<const T*>(values ? segment.v : segment.k);
  const int64_t stride = values ? segment.v_row : segment.k_row,
                head = values ? segment.v_head : segment.k_head;
  return {data + kv_head * head + key * stride, stride, min(segment.keys - key, kKeys)};
}

// Eight columns of row `row` from `column` on, zeros beyond what there is.
template <class T>
__device__ __forceinline__ void load_columns(const FlashArgs& args, const T* row, int column,
                                             float (&x)[8]) {
  const int valid = args.size - column;
  if (args.aligned && valid >= 8) {
#pragma unroll
    for (int half = 0; half < 8; half += 16 / static_cast<int>(sizeof(T))) {
      constexpr int kLanes = 16 / static_cast<int>(sizeof(T));
      float lanes[kLanes];
      load_lanes<kLanes>(row + column + half, lanes);
#pragma unroll
      for (int i = 0; i < kLanes; ++i) x[half + i] = lanes[i];
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = i < valid ? to_float(row[column + i]) : 0.0f;
}

// Where query head `share_head` of `row` lies; rows are those of FlashArgs.
template <class T>
__device__ __forceinline__ const T* query_row(const FlashArgs& args, int row, int kv_head) {
  return static_cast<const T*>(args.q) + row / args.share * args.q_row +
         (kv_head * args.share + row % args.share) * args.q_head;
}

// Row r of tile `tile` of an operand; null beyond the last.
template <class T>
__device__ __forceinline__ const T* operand_row(const FlashArgs& args, Operand operand, int tile,
                                                int kv_head, int r) {
  if (operand == kQ) {
    const int row = tile * kRows + r;
    return row < args.queries * args.share ? query_row<T>(args, row, kv_head) : nullptr;
  }
  const TileRows<T> rows = tile_rows<T>(args, operand == kV, tile, kv_head);
  return r < rows.count ? rows.data + r * rows.stride : nullptr;
}

// What a pass over all operands does: block (x, kv head) takes a tile of one of them.
__device__ __forceinline__ Operand operand_of(const FlashArgs& args, const Eight& eight,
                                              int& tile) {
  tile = blockIdx.x;
  if (tile < eight.row_blocks) return kQ;
  tile -= eight.row_blocks;
  if (tile < args.tiles) return kK;
  tile -= args.tiles;
  return kV;
}

__global__ void clear(uint32_t* most, int count) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) most[i] = 0;
}

// The largest magnitudes. As whole numbers, bits of NaN are larger than those of infinity.
template <class T>
__global__ void __launch_bounds__(kThreads)
    measure(const __grid_constant__ FlashArgs args, const Eight eight) {
  int tile = 0;
  const Operand operand = operand_of(args, eight, tile);
  const int kv_head = blockIdx.y, column = threadIdx.x % 16 * 8;
  uint32_t most = 0;
  for (int r = threadIdx.x / 16; r < 128; r += kThreads / 16) {
    const T* const row = operand_row<T>(args, operand, tile, kv_head, r);
    if (!row) break;
    float x[8];
    load_columns(args, row, column, x);
#pragma unroll
    for (int i = 0; i < 8; ++i) most = max(most, __float_as_uint(x[i]) & 0x7fffffffu);
  }
  __syncwarp();
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    most = max(most, __shfl_xor_sync(0xffffffffu, most, step));
  if (threadIdx.x % 32 == 0) atomicMax(&eight.most[operand * eight.kv_heads + kv_head], most);
}

// Where byte `column` of row `row` of a tile lies: pieces of 16 bytes are exchanged within eight.
__device__ __forceinline__ int swizzled(int row, int column) {
  return row * 128 + ((column / 16) ^ (row % 8)) * 16 + column % 16;
}

// The column of `key` in a row of transposed values: probabilities lie in registers as the logits'
// products left them, four of a thread's in the order that products take them.
__device__ __forceinline__ int value_column(int key) {
  return key / 16 * 16 + key % 8 / 2 * 4 + key % 16 / 8 * 2 + key % 2;
}

// Writes the tiles as they lie in shared memory, values transposed.
template <class T>
__global__ void __launch_bounds__(kThreads)
    pack(const __grid_constant__ FlashArgs args, const Eight eight) {
  uint8_t* const image = dynamic_shared<uint8_t>();
  int tile = 0;
  const Operand operand = operand_of(args, eight, tile);
  const int kv_head = blockIdx.y, column = threadIdx.x % 16 * 8;
  const float scale = power_of_two(-e4m3_exponent(largest(eight, operand, kv_head)));
  for (int r = threadIdx.x / 16; r < 128; r += kThreads / 16) {
    const T* const row = operand_row<T>(args, operand, tile, kv_head, r);
    float x[8] = {};
    if (row) load_columns(args, row, column, x);
    const uint2 eight_bytes =
        make_uint2(e4m3_quad(x[0] * scale, x[1] * scale, x[2] * scale, x[3] * scale),
                   e4m3_quad(x[4] * scale, x[5] * scale, x[6] * scale, x[7] * scale));
    if (operand != kV) {
      *reinterpret_cast<uint2*>(image + swizzled(r, column)) = eight_bytes;
      continue;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t word = i < 4 ? eight_bytes.x : eight_bytes.y;
      image[swizzled(column + i, value_column(r))] = static_cast<uint8_t>(word >> i % 4 * 8);
    }
  }
  __syncthreads();
  uint8_t* const all = operand == kQ ? eight.q : operand == kK ? eight.k : eight.v;
  const int tiles = operand == kQ ? eight.row_blocks : args.tiles;
  uint8_t* const to = all + (static_cast<int64_t>(kv_head) * tiles + tile) * kTileBytes;
  for (int at = threadIdx.x * 16; at < kTileBytes; at += kThreads * 16)
    *reinterpret_cast<uint4*>(to + at) = *reinterpret_cast<const uint4*>(image + at);
}

// The block's shared memory.
struct Stages {
  uint8_t* queries;
  uint8_t* tiles;  // keys and values in turns
  uint64_t *full, *empty;

  __device__ __forceinline__ uint8_t* keys(int n) const {
    return tiles + n % kStages * 2 * kTileBytes;
  }
  __device__ __forceinline__ uint8_t* values(int n) const { return keys(n) + kTileBytes; }
  // The n-th tile is here.
  __device__ __forceinline__ void await(int n) const {
    barrier_wait(&full[n % kStages], n / kStages & 1);
  }
  // This warp has read it.
  __device__ __forceinline__ void release(int n) const {
    if (threadIdx.x % 32 == 0) barrier_arrive(&empty[n % kStages]);
  }
};

__device__ __forceinline__ Stages make_stages() {
  auto* const shared = dynamic_shared<uint8_t>();
  const auto misplaced = static_cast<int>(reinterpret_cast<uintptr_t>(shared) % kSwizzled);
  Stages stages{};
  stages.queries = shared + (kSwizzled - misplaced) % kSwizzled;
  stages.tiles = stages.queries + kTileBytes;
  stages.full = reinterpret_cast<uint64_t*>(stages.queries + kTilesOfShared * kTileBytes);
  stages.empty = stages.full + kStages;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      barrier_init(&stages.full[s], 1);
      barrier_init(&stages.empty[s], kThreads / 32);
    }
    barrier_init_fence();
  }
  __syncthreads();
  return stages;
}

// Asks for tile after tile; one thread's.
struct Loader {
  FlashCursor at;
  int asked = 0;

  __device__ __forceinline__ void load(const FlashArgs& args, const Eight& eight,
                                       const FlashBlock& block, const Stages& stages) {
    if (!settle<kKeys>(args, block, at)) return;
    const int n = asked++, stage = n % kStages;
    if (n >= kStages) barrier_wait(&stages.empty[stage], (n / kStages - 1) & 1);
    barrier_expect(&stages.full[stage], (n == 0 ? 3 : 2) * kTileBytes);
    if (n == 0) {  // the queries come with the first tile
      const int64_t rows = int64_t{block.kv_head} * eight.row_blocks + block.first_row / kRows;
      copy_bulk(stages.queries, eight.q + rows * kTileBytes, kTileBytes, &stages.full[stage]);
    }
    const int64_t tile =
        int64_t{block.kv_head} * args.tiles + args.segment[at.segment].first_tile + at.key / kKeys;
    copy_bulk(stages.keys(n), eight.k + tile * kTileBytes, kTileBytes, &stages.full[stage]);
    copy_bulk(stages.values(n), eight.v + tile * kTileBytes, kTileBytes, &stages.full[stage]);
    at.key += kKeys;
  }
};

// What a thread keeps of its two rows, lane / 4 + 8 h of the warp: columns 8 n + 2 (lane % 4) + c
// at [4 n + 2 h + c].
struct State {
  float sum[64];
  float top[2], total[2];
};

// logit = q k^T of the n-th tile.
__device__ __forceinline__ void start_logits(float (&logit)[64], const Stages& stages, int n) {
  const uint8_t* const queries = stages.queries + threadIdx.x / 128 * (kTileBytes / 2);
  const uint8_t* const keys = stages.keys(n);
  group_multiply_e4m3(logit, group_rows(queries, 0), group_rows(keys, 0));
#pragma unroll
  for (int e = 1; e < kColumns / 32; ++e)
    group_add_e4m3(logit, group_rows(queries, e * 32), group_rows(keys, e * 32));
}

// sum = probabilities v of the n-th tile.
__device__ __forceinline__ void start_sums(float (&sum)[64],
                                           const uint32_t (&probability)[kKeys / 32][4],
                                           const Stages& stages, int n) {
  const uint8_t* const values = stages.values(n);
  group_multiply_e4m3(sum, probability[0], group_rows(values, 0));
#pragma unroll
  for (int k = 1; k < kKeys / 32; ++k)
    group_add_e4m3(sum, probability[k], group_rows(values, k * 32));
}

// -infinity where a row does not see a key.
__device__ __forceinline__ void mask(float (&logit)[64], const FlashArgs& args,
                                     const FlashBlock& block, const FlashCursor& at) {
  const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int seen = seen_keys(args, block, at, block.first_row + first + 8 * h) - lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c)
        if (8 * n + c >= seen) logit[4 * n + 2 * h + c] = minus_infinity();
  }
}

// Turns logit x scale + shift, scale > 0 or NaN, into probabilities of 8 bits relative to the
// largest; shrink is what the sums so far become relative to that.
__device__ __forceinline__ void soften(State& state, float (&logit)[64], float scale, float shift,
                                       uint32_t (&probability)[kKeys / 32][4], float (&shrink)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float high = minus_infinity();
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
      high = fmaxf(high, fmaxf(logit[4 * n + 2 * h], logit[4 * n + 2 * h + 1]));
    high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 1));
    high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 2));
    const float top = fmaxf(state.top[h], ceilf(fmaf(high, scale, shift)));
    shrink[h] = top == state.top[h] ? 1.0f : fast_exp2(state.top[h] - top);
    state.top[h] = top;
    const float offset =
        shift + kProbabilityBits - (top == minus_infinity() ? 0.0f : top);  // no key seen yet
    float total = 0;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float& power = logit[4 * n + 2 * h + c];
        power = fast_exp2(fmaf(power, scale, offset));
        total += power;
      }
    state.total[h] = fmaf(state.total[h], shrink[h], total);
  }
#pragma unroll
  for (int k = 0; k < kKeys / 32; ++k)
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const float* const p = logit + 16 * k + part / 2 * 8 + part % 2 * 2;
      probability[k][part] = e4m3_quad(p[0], p[1], p[4], p[5]);
    }
}

__device__ __forceinline__ void scale_logits(float (&logit)[64], float scale) {
#pragma unroll
  for (int i = 0; i < 64; ++i) logit[i] *= scale;
}

// One tile, the n-th, whose logits are ready: adds it to the sums. The next tile's logits are made
// meanwhile; where there is none, this one's again, since a branch would cut the pipeline.
__device__ __forceinline__ void add_tile(State& state, float (&logit)[64], const FlashArgs& args,
                                         const FlashBlock& block, const FlashCursor& at,
                                         const Stages& stages, float scale, int n, bool last) {
  uint32_t probability[kKeys / 32][4];
  float shrink[2], sum[64];
  if (!(scale > 0)) scale_logits(logit, scale);
  if (cut<kKeys>(args, block, at)) mask(logit, args, block, at);
  soften(state, logit, scale > 0 ? scale : 1.0f, args.segment[at.segment].shift, probability,
         shrink);
  const int next = last ? n : n + 1;
  stages.await(next);
  group_hold(logit);
  group_fence();
  start_sums(sum, probability, stages, n);
  start_logits(logit, stages, next);
  group_commit();
  group_wait<0>();
  group_hold(sum);
  group_hold(logit);
#pragma unroll
  for (int k = 0; k < kKeys / 32; ++k) group_hold(probability[k]);
  stages.release(n);
#pragma unroll
  for (int i = 0; i < 64; ++i) state.sum[i] = fmaf(state.sum[i], shrink[i / 2 % 2], sum[i]);
}

__device__ __forceinline__ void store_rows(State& state, const FlashArgs& args,
                                           const FlashBlock& block, float scale) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float total = state.total[h];
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    const int row = block.first_row + threadIdx.x / 32 * 16 + lane / 4 + 8 * h;
    if (row >= block.rows) continue;
    if (lane % 4 == 0) store_lse(args, block, row, state.top[h] - kProbabilityBits, total);
    const float share = total == 0 ? 0.0f : scale / total;
    const int64_t offset = block.part * args.out_part + row / args.share * args.out_row +
                           head_of(args, block, row) * args.out_head;
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int column = 8 * n + lane % 4 * 2 + c;
        if (column >= args.size) continue;
        const float value = state.sum[4 * n + 2 * h + c] * share;
        if (args.f32_out)
          static_cast<float*>(args.out)[offset + column] = value;
        else
          static_cast<bf16*>(args.out)[offset + column] = to_bf16(value);
      }
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    flash_fp8(const __grid_constant__ FlashArgs args, const Eight eight) {
  const Stages stages = make_stages();
  const FlashBlock block = flash_block<kRows>(args);
  State state;
#pragma unroll
  for (int i = 0; i < 64; ++i) state.sum[i] = 0;
#pragma unroll
  for (int h = 0; h < 2; ++h) state.top[h] = minus_infinity(), state.total[h] = 0;
  FlashCursor at = first_tile<kKeys>(args, block);
  Loader loader{.at = at};
  if (threadIdx.x == 0)
    for (int i = 0; i < kAhead; ++i) loader.load(args, eight, block, stages);
  __syncwarp();
  const float scale = args.scale * scale_of(largest(eight, kQ, block.kv_head)) *
                      scale_of(largest(eight, kK, block.kv_head));
  bool more = settle<kKeys>(args, block, at);
  float logit[64];
  if (more) {
    stages.await(0);
    group_fence();
    start_logits(logit, stages, 0);
    group_commit();
    group_wait<0>();
    group_hold(logit);
  }
  for (int n = 0; more; ++n) {
    if (threadIdx.x == 0) loader.load(args, eight, block, stages);
    __syncwarp();
    const FlashCursor here = at;
    at.key += kKeys;
    more = settle<kKeys>(args, block, at);
    add_tile(state, logit, args, block, here, stages, scale, n, !more);
  }
  store_rows(state, args, block, scale_of(largest(eight, kV, block.kv_head)));
}

Eight place(char* scratch, int kv_heads, const FlashArgs& args) {
  Eight eight;
  eight.kv_heads = kv_heads;
  eight.row_blocks = static_cast<int>(blocks_for(args.rows(), kRows));
  const int64_t tiles = int64_t{kv_heads} * args.tiles * kTileBytes;
  eight.most = reinterpret_cast<uint32_t*>(scratch);
  eight.q = reinterpret_cast<uint8_t*>(scratch) + flash_fp8_most_bytes(kv_heads);
  eight.k = eight.q + int64_t{kv_heads} * eight.row_blocks * kTileBytes;
  eight.v = eight.k + tiles;
  return eight;
}

template <class T>
void prepare(const Stream& stream, const FlashArgs& args, const Eight& eight) {
  const dim3 tiles(static_cast<unsigned>(eight.row_blocks + 2 * args.tiles), eight.kv_heads);
  launch(stream, {.grid = dim3(1), .block = dim3(kThreads)}, clear, eight.most, 3 * eight.kv_heads);
  launch(stream, {.grid = tiles, .block = dim3(kThreads)}, measure<T>, args, eight);
  launch(stream, {.grid = tiles, .block = dim3(kThreads), .shared = kTileBytes}, pack<T>, args,
         eight);
}

}  // namespace

void launch_flash_fp8(const Stream& stream, DType dtype, int kv_heads, const FlashArgs& args,
                      size_t scratch_used) {
  const size_t begin = (scratch_used + 255) / 256 * 256;
  char* const scratch = static_cast<char*>(
      cuda_queue(stream).scratch(begin + flash_fp8_bytes(args.rows(), args.tiles, kv_heads)));
  const Eight eight = place(scratch + begin, kv_heads, args);
  if (dtype == DType::kF32)
    prepare<float>(stream, args, eight);
  else
    prepare<bf16>(stream, args, eight);
  launch(stream,
         {.grid = dim3(static_cast<unsigned>(eight.row_blocks), kv_heads, args.parts),
          .block = dim3(kThreads),
          .shared = kSharedBytes},
         flash_fp8, args, eight);
}

}  // namespace weft::cuda
