// Flash attention by wgmma, for compute capability 9.0, scheduled as FlashAttention-3 (Shah et al.
// 2024, sections 3.1 and 3.2). q, k and v are first copied into tiles (flash_sm90_tiles.cuh). Then
// a block has three warpgroups. One loads: the copy engine fills stages of one tile of keys and one
// of values. The other two, the consumers, have 64 rows each and walk over tiles of 128 keys; they
// take turns, so one multiplies while the other computes exponentials. Each also computes the
// exponentials of a tile while its own product with the values before runs.
//
// The tensor cores add e4m3 products with only 14 bits (DeepSeek-V3, 2024, 3.3.2), so each tile's
// sums start at zero and are added to the running sums in f32. The mma instruction would multiply
// e4m3 in f16 (seen in sm_90's machine code).
#include <cmath>

#include "kernels/cuda/flash_sm90_tiles.cuh"
#include "kernels/cuda/launch.cuh"

namespace weft::cuda {

namespace {

constexpr int kWarpgroup = 128, kConsumers = 2 * kWarpgroup;
// Registers of a thread, of 168 when a block of three warpgroups begins.
constexpr int kLoaderRegisters = 24, kConsumerRegisters = 240;

// The block's shared memory.
template <class Element>
struct Stages {
  using Of = Tiles<Element>;

  uint8_t* queries;
  uint8_t* tiles;  // keys and values alternate
  uint64_t *full, *empty;

  __device__ __forceinline__ uint8_t* keys(int n) const {
    return tiles + n % Of::kStages * 2 * Of::kBytes;
  }
  __device__ __forceinline__ uint8_t* values(int n) const { return keys(n) + Of::kBytes; }
  // Waits until the n-th tile has arrived.
  __device__ __forceinline__ void await(int n) const {
    barrier_wait(&full[n % Of::kStages], n / Of::kStages & 1);
  }
  // Tells the loader that this warp has read the n-th tile.
  __device__ __forceinline__ void release(int n) const {
    if (threadIdx.x % 32 == 0) barrier_arrive(&empty[n % Of::kStages]);
  }
};

template <class Element>
__device__ __forceinline__ Stages<Element> make_stages() {
  using Of = Tiles<Element>;
  auto* const shared = dynamic_shared<uint8_t>();
  const auto misplaced = static_cast<int>(reinterpret_cast<uintptr_t>(shared) % kSwizzled);
  Stages<Element> stages{};
  stages.queries = shared + (kSwizzled - misplaced) % kSwizzled;
  stages.tiles = stages.queries + Of::kBytes;
  stages.full = reinterpret_cast<uint64_t*>(stages.queries + Of::kOfShared * Of::kBytes);
  stages.empty = stages.full + Of::kStages;
  if (threadIdx.x == 0) {
    for (int s = 0; s < Of::kStages; ++s) {
      barrier_init(&stages.full[s], 1);
      barrier_init(&stages.empty[s], kConsumers / 32);
    }
    barrier_init_fence();
  }
  __syncthreads();
  return stages;
}

// One thread requests all tiles, one after the other.
template <class Element>
__device__ __forceinline__ void load_tiles(const FlashArgs& args, const Packed& packed,
                                           const FlashBlock& block, const Stages<Element>& stages) {
  using Of = Tiles<Element>;
  FlashCursor at = first_tile<kKeys>(args, block);
  for (int n = 0; skip_to_visible_tile<kKeys>(args, block, at); ++n, at.key += kKeys) {
    const int stage = n % Of::kStages;
    if (n >= Of::kStages) barrier_wait(&stages.empty[stage], (n / Of::kStages - 1) & 1);
    barrier_expect(&stages.full[stage], (n == 0 ? 3 : 2) * Of::kBytes);
    if (n == 0) {  // the queries come with the first tile
      const int64_t rows = int64_t{block.kv_head} * packed.row_blocks + block.first_row / kRows;
      copy_bulk(stages.queries, packed.q + rows * Of::kBytes, Of::kBytes, &stages.full[stage]);
    }
    const int64_t tile =
        int64_t{block.kv_head} * args.tiles + args.segment[at.segment].first_tile + at.key / kKeys;
    copy_bulk(stages.keys(n), packed.k + tile * Of::kBytes, Of::kBytes, &stages.full[stage]);
    copy_bulk(stages.values(n), packed.v + tile * Of::kBytes, Of::kBytes, &stages.full[stage]);
  }
}

// The consumers' turns to issue multiplications: a named barrier each, where the other one arrives
// when it has issued its own. The second consumer gives the first its first turn.
struct Turns {
  int consumer;  // 0 or 1
  __device__ __forceinline__ void begin() const {
    if (consumer == 1) named_barrier_arrive(1, kConsumers);
  }
  __device__ __forceinline__ void await() const { named_barrier_sync(1 + consumer, kConsumers); }
  // After the last turn nobody waits for the first consumer's barrier.
  __device__ __forceinline__ void pass(bool last) const {
    if (consumer == 0 || !last) named_barrier_arrive(2 - consumer, kConsumers);
  }
};

// A consumer thread's number among the 256 of both consumers.
__device__ __forceinline__ unsigned consumer_thread() { return threadIdx.x - kWarpgroup; }

// The registers of a thread for its two rows, lane / 4 + 8 h of the warp: columns 8 n + 2 (lane %
// 4) + c at [4 n + 2 h + c].
struct State {
  float sum[64];
  float top[2], total[2];
};

// Starts logit = q k^T of the n-th tile.
template <class Element>
__device__ __forceinline__ void start_logits(float (&logit)[64], const Stages<Element>& stages,
                                             int n) {
  const uint8_t* const queries =
      stages.queries + consumer_thread() / kWarpgroup * (kPanelBytes / 2);
  const uint8_t* const keys = stages.keys(n);
  wgmma_multiply<Element>(logit, wgmma_descriptor(queries, 0), wgmma_descriptor(keys, 0));
#pragma unroll
  for (int e = 1; e < Tiles<Element>::kInstructions; ++e) {
    const int panel = e / 4 * kPanelBytes, byte = e % 4 * 32;
    wgmma_add<Element>(logit, wgmma_descriptor(queries + panel, byte),
                       wgmma_descriptor(keys + panel, byte));
  }
}

// Starts sum += probabilities v of the n-th tile; in 8 bits, sum = probabilities v.
template <class Element>
__device__ __forceinline__ void start_sums(
    float (&sum)[64], const uint32_t (&probability)[Tiles<Element>::kInstructions][4],
    const Stages<Element>& stages, int n) {
  const uint8_t* const values = stages.values(n);
  if constexpr (Tiles<Element>::kEightBits)
    wgmma_multiply<Element>(sum, probability[0], wgmma_descriptor(values, 0));
#pragma unroll
  for (int k = Tiles<Element>::kEightBits; k < Tiles<Element>::kInstructions; ++k)
    wgmma_add<Element>(sum, probability[k],
                       wgmma_descriptor(values + k / 4 * kPanelBytes, k % 4 * 32));
}

// Sets logits to -infinity where a row does not see a key.
__device__ __forceinline__ void mask(float (&logit)[64], const FlashArgs& args,
                                     const FlashBlock& block, const FlashCursor& at) {
  const int lane = threadIdx.x % 32,
            first = static_cast<int>(consumer_thread() / 32) * 16 + lane / 4;
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

// Packs probabilities as an operand of wgmma: each register holds keys 2 i and 2 i + 1 of a group
// of eight, in the order in which the wgmma of the logits left them.
__device__ __forceinline__ void pack_probabilities(const float (&p)[64],
                                                   uint32_t (&registers)[4][4]) {
#pragma unroll
  for (int k = 0; k < 4; ++k)
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const float* const four = p + 16 * k + part / 2 * 8 + part % 2 * 2;
      registers[k][part] = e4m3_quad(four[0], four[1], four[4], four[5]);
    }
}
__device__ __forceinline__ void pack_probabilities(const float (&p)[64],
                                                   uint32_t (&registers)[8][4]) {
#pragma unroll
  for (int k = 0; k < 8; ++k)
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const float* const two = p + 8 * k + part / 2 * 4 + part % 2 * 2;
      registers[k][part] = bf16_pair(two[0], two[1]);
    }
}

// Turns logit x scale + shift, scale > 0, into probabilities relative to the running
// maximum; in 8 bits the maximum is rounded up to an integer. `rescale` returns the factors of the
// earlier sums.
template <class Element>
__device__ __forceinline__ void online_softmax(State& state, float (&logit)[64], float scale,
                                               float shift, float (&rescale)[2]) {
  using Of = Tiles<Element>;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float high = minus_infinity();
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
      high = fmaxf(high, fmaxf(logit[4 * n + 2 * h], logit[4 * n + 2 * h + 1]));
    high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 1));
    high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 2));
    const float highest = fmaf(high, scale, shift);
    const float top = fmaxf(state.top[h], Of::kEightBits ? ceilf(highest) : highest);
    rescale[h] = top == state.top[h] ? 1.0f : fast_exp2(state.top[h] - top);
    state.top[h] = top;
    const float offset =
        // The maximum is -infinity until a key is seen.
        shift + Of::kOneBits - (top == minus_infinity() ? 0.0f : top);
    float total = 0;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float& power = logit[4 * n + 2 * h + c];
        power = fast_exp2(fmaf(power, scale, offset));
        total += power;
      }
    state.total[h] = fmaf(state.total[h], rescale[h], total);
  }
}

__device__ __forceinline__ void rescale_sums(State& state, const float (&rescale)[2]) {
  // This is true for most tiles.
  if (!__any_sync(0xffffffffu, rescale[0] != 1.0f || rescale[1] != 1.0f)) return;
#pragma unroll
  for (int i = 0; i < 64; ++i) state.sum[i] *= rescale[i / 2 % 2];
}

// One consumer's walk over the tiles. Its logits of a tile become probabilities in place, then the
// operand of the product with the values.
template <class Element>
class Consumer {
 public:
  using Of = Tiles<Element>;

  __device__ __forceinline__ Consumer(const FlashArgs& args, const FlashBlock& block,
                                      const Stages<Element>& stages, float scale)
      : args_(args),
        block_(block),
        stages_(stages),
        turns_{static_cast<int>(consumer_thread() / kWarpgroup)},
        scale_(scale) {
#pragma unroll
    for (int i = 0; i < 64; ++i) state.sum[i] = 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) state.top[h] = minus_infinity(), state.total[h] = 0;
  }

  __device__ __forceinline__ void walk(FlashCursor at) {
    if (!skip_to_visible_tile<kKeys>(args_, block_, at)) return;
    turns_.begin();
    multiply_first();
    softmax(at);
    pack_probabilities(logit_, probability_);
    int n = 0;
    for (bool more = advance(at); more; ++n) more = add(n, at);
    add_last(n);
  }

  State state;

 private:
  // The first logits.
  __device__ __forceinline__ void multiply_first() {
    stages_.await(0);
    turns_.await();
    wgmma_fence();
    start_logits<Element>(logit_, stages_, 0);
    wgmma_commit();
    turns_.pass(false);
    wgmma_wait<0>();
    wgmma_hold(logit_);
  }

  __device__ __forceinline__ bool advance(FlashCursor& at) const {
    at.key += kKeys;
    return skip_to_visible_tile<kKeys>(args_, block_, at);
  }

  __device__ __forceinline__ void softmax(const FlashCursor& at) {
    if (cut<kKeys>(args_, block_, at)) mask(logit_, args_, block_, at);
    online_softmax<Element>(state, logit_, scale_, args_.segment[at.segment].shift, rescale_);
  }

  __device__ __forceinline__ void hold_operands() {
    wgmma_hold(product());
#pragma unroll
    for (int k = 0; k < Of::kInstructions; ++k) wgmma_hold(probability_[k]);
  }

  // Adds the n-th tile, whose probabilities are packed, to the sums. Before that it starts the
  // logits of the next tile, at `at`, whose exponentials it computes meanwhile. Moves `at` on, and
  // returns false if no tile is left.
  __device__ __forceinline__ bool add(int n, FlashCursor& at) {
    stages_.await(n + 1);
    turns_.await();
    wgmma_hold(logit_);
    hold_operands();
    wgmma_fence();
    start_logits<Element>(logit_, stages_, n + 1);
    wgmma_commit();
    start_sums<Element>(product(), probability_, stages_, n);
    wgmma_commit();
    turns_.pass(false);
    wgmma_wait<1>();
    wgmma_hold(logit_);
    softmax(at);
    wgmma_hold(logit_);
    // These branches keep the compiler from moving exponentials after the wait.
    const bool more = advance(at);
    wgmma_wait<0>();
    hold_operands();
    stages_.release(n);
    add_product();
    rescale_sums(state, rescale_);
    pack_probabilities(logit_, probability_);
    return more;
  }

  __device__ __forceinline__ void add_last(int n) {
    turns_.await();
    hold_operands();
    wgmma_fence();
    start_sums<Element>(product(), probability_, stages_, n);
    wgmma_commit();
    turns_.pass(true);
    wgmma_wait<0>();
    hold_operands();
    add_product();
  }

  // The registers of a tile's product with the values: in 8 bits its own, else the sums.
  __device__ __forceinline__ float (&product())[64] {
    if constexpr (Of::kEightBits)
      return fresh_;
    else
      return state.sum;
  }
  __device__ __forceinline__ void add_product() {
    if constexpr (Of::kEightBits)
#pragma unroll
      for (int i = 0; i < 64; ++i) state.sum[i] += fresh_[i];
  }

  const FlashArgs& args_;
  const FlashBlock& block_;
  const Stages<Element>& stages_;
  const Turns turns_;
  const float scale_;
  float logit_[64], fresh_[64], rescale_[2];
  uint32_t probability_[Of::kInstructions][4];
};

// Stores two neighbouring columns of a row, of which `valid` exist.
template <class T>
__device__ __forceinline__ void store_pair(T* to, float a, float b, int valid) {
  const bool whole = valid >= 2 && reinterpret_cast<uintptr_t>(to) % (2 * sizeof(T)) == 0;
  if constexpr (sizeof(T) == 4) {
    if (whole) {
      *reinterpret_cast<float2*>(to) = make_float2(a, b);
      return;
    }
    if (valid >= 1) to[0] = a;
    if (valid >= 2) to[1] = b;
  } else {
    const uint32_t pair = bf16_pair(a, b);
    if (whole) {
      *reinterpret_cast<uint32_t*>(to) = pair;
      return;
    }
    if (valid >= 1) to[0] = to_bf16(a);
    if (valid >= 2) to[1] = to_bf16(b);
  }
}

template <class Element>
__device__ __forceinline__ void store_rows(State& state, const FlashArgs& args,
                                           const FlashBlock& block, float scale) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float total = state.total[h];
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    const int row =
        block.first_row + static_cast<int>(consumer_thread() / 32) * 16 + lane / 4 + 8 * h;
    if (row >= block.rows) continue;
    if (lane % 4 == 0) store_lse(args, block, row, state.top[h] - Tiles<Element>::kOneBits, total);
    const float share = total == 0 ? 0.0f : scale / total;
    const int64_t offset = block.part * args.out_part + row / args.share * args.out_row +
                           head_of(args, block, row) * args.out_head;
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      const int column = 8 * n + lane % 4 * 2;
      const float a = total == 0 ? 0.0f : state.sum[4 * n + 2 * h] * share,
                  b = total == 0 ? 0.0f : state.sum[4 * n + 2 * h + 1] * share;
      if (args.f32_out)
        store_pair(static_cast<float*>(args.out) + offset + column, a, b, args.size - column);
      else
        store_pair(static_cast<bf16*>(args.out) + offset + column, a, b, args.size - column);
    }
  }
}

template <class Element>
__global__ void __launch_bounds__(kWarpgroup + kConsumers, 1)
    flash_sm90(const __grid_constant__ FlashArgs args, const Packed packed) {
  using Of = Tiles<Element>;
  const Stages<Element> stages = make_stages<Element>();
  const FlashBlock block = flash_block<kRows>(args);
  if (threadIdx.x < kWarpgroup) {
    give_registers<kLoaderRegisters>();
    if (threadIdx.x == 0) load_tiles<Element>(args, packed, block, stages);
  } else {
    take_registers<kConsumerRegisters>();
    float scale = args.scale, value_scale = 1;
    if constexpr (Of::kEightBits) {
      scale *= e4m3_scale(largest(packed, kQ, block.kv_head)) *
               e4m3_scale(largest(packed, kK, block.kv_head));
      value_scale = e4m3_scale(largest(packed, kV, block.kv_head));
    }
    Consumer<Element> consumer(args, block, stages, scale);
    consumer.walk(first_tile<kKeys>(args, block));
    store_rows<Element>(consumer.state, args, block, value_scale);
  }
}

Packed place(char* scratch, size_t element_bytes, int kv_heads, const FlashArgs& args) {
  Packed packed;
  packed.kv_heads = kv_heads;
  packed.row_blocks = static_cast<int>(blocks_for(args.rows(), kRows));
  const int64_t tile = kPanelBytes * static_cast<int64_t>(element_bytes);
  packed.most = reinterpret_cast<uint32_t*>(scratch);
  packed.q = reinterpret_cast<uint8_t*>(scratch) + flash_sm90_maxima_bytes(kv_heads);
  packed.k = packed.q + kv_heads * packed.row_blocks * tile;
  packed.v = packed.k + kv_heads * args.tiles * tile;
  return packed;
}

template <class Element, class T>
void run(const Stream& stream, FlashArgs args, Packed packed) {
  using Of = Tiles<Element>;
  const bool usual = args.scale > 0 || args.scale < 0;
  packed.sign = usual ? std::copysign(1.0f, args.scale) : args.scale;
  args.scale = usual ? std::abs(args.scale) : 1;
  const dim3 tiles(static_cast<unsigned>(packed.row_blocks + 2 * args.tiles), packed.kv_heads);
  if constexpr (Of::kEightBits) {
    launch(stream, {.grid = dim3(1), .block = dim3(kThreads)}, clear, packed.most,
           3 * packed.kv_heads);
    launch(stream, {.grid = tiles, .block = dim3(kThreads)}, measure<T>, args, packed);
  }
  launch(stream, {.grid = tiles, .block = dim3(kThreads), .shared = Of::kBytes}, pack<Element, T>,
         args, packed);
  launch(stream,
         {.grid = dim3(static_cast<unsigned>(packed.row_blocks), packed.kv_heads, args.parts),
          .block = dim3(kWarpgroup + kConsumers),
          .shared = Of::kSharedBytes},
         flash_sm90<Element>, args, packed);
}

}  // namespace

void launch_flash_sm90(const Stream& stream, DType dtype, AttentionFormat format, int kv_heads,
                       const FlashArgs& args, size_t scratch_used) {
  const size_t element_bytes = format == AttentionFormat::kFp8 ? 1 : sizeof(bf16),
               begin = (scratch_used + 255) / 256 * 256;
  char* const scratch = static_cast<char*>(cuda_queue(stream).scratch(
      begin + flash_sm90_scratch_bytes(element_bytes, args.rows(), args.tiles, kv_heads)));
  const Packed packed = place(scratch + begin, element_bytes, kv_heads, args);
  if (format == AttentionFormat::kCompute)
    run<bf16, bf16>(stream, args, packed);
  else if (dtype == DType::kF32)
    run<uint8_t, float>(stream, args, packed);
  else
    run<uint8_t, bf16>(stream, args, packed);
}

}  // namespace weft::cuda
