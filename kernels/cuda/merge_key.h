#pragma once
// Adds one more key to an attention that was computed without it.
#include "kernels/stream.h"

namespace weft::cuda {

// Strides are in elements; the innermost dimension is dense. All rows are whole 16-byte pieces at
// multiples of 16 bytes.
struct MergeKey {
  int64_t queries = 0, heads = 0, kv_heads = 0, size = 0;
  const void* q = nullptr;  // [queries, heads, size] bf16
  const void* k = nullptr;  // [kv_heads, size] bf16
  const void* v = nullptr;
  void* out = nullptr;   // [queries, heads, size] bf16: the attention, updated in place
  float* lse = nullptr;  // [heads, queries] dense, natural logarithm: of that attention, updated
  int64_t q_row = 0, q_head = 0, k_head = 0, v_head = 0, out_row = 0, out_head = 0;
  float scale = 1, log_bias = 0;
};

void merge_key(const Stream& stream, const MergeKey& problem);

}  // namespace weft::cuda
