#pragma once
// cuDNN's plan of one attention problem, made from its native SDPA operation (cuDNN 9.13 and newer)
// by the backend API. Also made without a device, from a description of one: a test does.
#include <cudnn_graph.h>

#include <compare>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/sdpa.h"

namespace weft::cuda {

class CudnnDescriptor {
 public:
  CudnnDescriptor() = default;
  explicit CudnnDescriptor(cudnnBackendDescriptorType_t type);
  ~CudnnDescriptor() { reset(); }
  CudnnDescriptor(CudnnDescriptor&& other) noexcept { std::swap(data_, other.data_); }
  CudnnDescriptor& operator=(CudnnDescriptor&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }

  cudnnBackendDescriptor_t get() const { return data_; }
  explicit operator bool() const { return data_ != nullptr; }
  // These throw CudnnRefusal.
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
           const void* values);
  void set(cudnnBackendAttributeName_t name, const CudnnDescriptor& value);
  void finalize();

 private:
  void reset();
  cudnnBackendDescriptor_t data_ = nullptr;
};

// A call of cuDNN's that failed, with its status and reason.
struct CudnnRefusal {
  cudnnStatus_t status;
  std::string text;
};
void check_cudnn(cudnnStatus_t status, const char* what);

// What a plan depends on.
struct SdpaShape {
  int64_t queries, keys, heads, kv_heads, size;
  int64_t q_row, q_head, k_row, k_head, v_row, v_head, out_row, out_head;
  bool lse;
  auto operator<=>(const SdpaShape&) const = default;

  static SdpaShape of(const Sdpa& problem);
};

// Unique ids of the plan's tensors.
enum SdpaTensor : int64_t { kSdpaQ = 1, kSdpaK, kSdpaV, kSdpaOut, kSdpaLse, kSdpaScale };

// Where a plan is to run: a handle, or a finalised CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR.
struct SdpaTarget {
  cudnnHandle_t handle = nullptr;
  const CudnnDescriptor* device = nullptr;
};

// The engine configurations that cuDNN's heuristics propose and its checks accept, best first.
std::vector<CudnnDescriptor> propose_sdpa(const SdpaShape& shape, const SdpaTarget& target);

// Throws CudnnRefusal.
CudnnDescriptor make_sdpa_plan(const CudnnDescriptor& configuration, const SdpaTarget& target);

}  // namespace weft::cuda
