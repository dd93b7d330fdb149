// The padding of a prompt may be one key with a bias. The library takes a stretch of keys without
// biases; this adds one key after it. Reading q, and reading and writing out, takes less time than
// our flash kernels need for a short prompt (tests/bench/results/gpu.jsonl).
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/divisor.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/merge_key.h"

namespace weft::cuda {

namespace {

constexpr int kLanesOfRow = 16, kMergeKeyThreads = 256, kPiece = 8;

// Sixteen threads take one query of one head, in pieces of eight values.
__global__ void __launch_bounds__(kMergeKeyThreads)
    merge_one_key(MergeKey p, Divisor heads, Divisor heads_of_a_key) {
  const int lane = threadIdx.x % kLanesOfRow;
  const uint32_t index = blockIdx.x * (kMergeKeyThreads / kLanesOfRow) + threadIdx.x / kLanesOfRow;
  const bool real = index < p.queries * p.heads;
  const int64_t row = real ? heads.quotient(index) : 0, head = real ? heads.remainder(index) : 0;
  const int64_t kv_head = heads_of_a_key.quotient(static_cast<uint32_t>(head));
  const bf16 *const q = static_cast<const bf16*>(p.q) + row * p.q_row + head * p.q_head,
                    *const k = static_cast<const bf16*>(p.k) + kv_head * p.k_head,
                    *const v = static_cast<const bf16*>(p.v) + kv_head * p.v_head;
  bf16* const out = static_cast<bf16*>(p.out) + row * p.out_row + head * p.out_head;
  float logit = 0;
  for (int64_t e = lane * kPiece; e < p.size; e += kLanesOfRow * kPiece) {
    float a[kPiece], b[kPiece];
    load_lanes<kPiece>(q + e, a);
    load_lanes<kPiece>(k + e, b);
#pragma unroll
    for (int i = 0; i < kPiece; ++i) logit = fmaf(a[i], b[i], logit);
  }
#pragma unroll
  for (int step = kLanesOfRow / 2; step > 0; step /= 2)
    logit += __shfl_xor_sync(0xffffffffu, logit, step);
  logit = fmaf(logit, p.scale, p.log_bias);
  float* const lse = p.lse + head * p.queries + row;
  const float before = *lse, share = 1.0f / (1.0f + expf(before - logit));
  for (int64_t e = lane * kPiece; e < p.size; e += kLanesOfRow * kPiece) {
    float a[kPiece], b[kPiece];
    load_lanes<kPiece>(out + e, a);
    load_lanes<kPiece>(v + e, b);
#pragma unroll
    for (int i = 0; i < kPiece; ++i) a[i] = fmaf(share, b[i], (1.0f - share) * a[i]);
    if (real) store_lanes<kPiece>(a, out + e);
  }
  __syncwarp();  // all lanes have read what lane 0 now overwrites
  if (real && lane == 0) *lse = fmaxf(before, logit) + log1pf(expf(-fabsf(before - logit)));
}

}  // namespace

void merge_key(const Stream& stream, const MergeKey& problem) {
  CHECK(problem.queries * problem.heads < Divisor::kMost - kMergeKeyThreads, "rows",
        problem.queries, problem.heads);
  launch(stream,
         {.grid = dim3(blocks_for(problem.queries * problem.heads, kMergeKeyThreads / kLanesOfRow)),
          .block = dim3(kMergeKeyThreads)},
         merge_one_key, problem, Divisor(problem.heads), Divisor(problem.heads / problem.kv_heads));
}

}  // namespace weft::cuda
