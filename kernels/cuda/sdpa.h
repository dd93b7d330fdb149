#pragma once
// Attention by a library: cuDNN (sdpa_cudnn.cc), or plain loops where tests run on a host. It only
// takes plain problems; the flash kernels do the rest.
#include <string>

#include "kernels/stream.h"

namespace weft::cuda {

// softmax(q k^T * scale) v in bf16 over one stretch of keys. Strides are in elements; the innermost
// dimension is dense.
struct Sdpa {
  int64_t queries = 0, keys = 0, heads = 0, kv_heads = 0, size = 0;
  const void* q = nullptr;  // [queries, heads, size]
  const void* k = nullptr;  // [keys, kv_heads, size]
  const void* v = nullptr;
  void* out = nullptr;   // [queries, heads, size]
  float* lse = nullptr;  // [heads, queries] dense, natural logarithm; or null
  int64_t q_row = 0, q_head = 0, k_row = 0, k_head = 0, v_row = 0, v_head = 0, out_row = 0,
          out_head = 0;
  float scale = 1;
  size_t scratch_used = 0;  // the queue's scratch begins with so many bytes of the caller's data
};

// Enqueues the problem on the stream. Returns false and does nothing if the library cannot do it;
// the same shape is then refused at once. The first call of a shape prepares it.
bool sdpa(const Stream& stream, const Sdpa& problem);

// Says why the library refused the last shape that it refused on this stream, or "".
std::string sdpa_refusal(const Stream& stream);

}  // namespace weft::cuda
