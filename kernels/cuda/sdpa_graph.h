#pragma once
// cuDNN's plan of one attention problem, made from its native SDPA operation (cuDNN 9.13 and newer)
// by the backend API. It can also be made without a device, from a description of one; a test does
// so.
#include <compare>
#include <cstdint>
#include <vector>

#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/sdpa.h"

namespace weft::cuda {

// An SdpaShape is everything a plan depends on.
struct SdpaShape {
  int64_t queries, keys, heads, kv_heads, size;
  int64_t q_row, q_head, k_row, k_head, v_row, v_head, out_row, out_head;
  bool lse;
  auto operator<=>(const SdpaShape&) const = default;

  static SdpaShape of(const Sdpa& problem);
};

// These are the unique ids of the plan's tensors.
enum SdpaTensor : int64_t { kSdpaQ = 1, kSdpaK, kSdpaV, kSdpaOut, kSdpaLse, kSdpaScale };

// Returns the engine configurations that cuDNN's heuristics propose and its checks accept, best
// first.
std::vector<CudnnDescriptor> propose_sdpa(const SdpaShape& shape, const CudnnTarget& target);

}  // namespace weft::cuda
