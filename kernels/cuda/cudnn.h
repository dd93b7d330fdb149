#pragma once
// cuDNN's backend API: descriptors, and plans of graphs. Plans can also be made without a device,
// from a description of one; tests do so.
#include <cudnn_graph.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace weft::cuda {

// Thrown when a call of cuDNN fails, with its status and reason.
struct CudnnRefusal {
  cudnnStatus_t status;
  std::string text;
};
void check_cudnn(cudnnStatus_t status, const char* what);

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
  void set(cudnnBackendAttributeName_t name, std::span<const int64_t> values);
  void set(cudnnBackendAttributeName_t name, cudnnDataType_t type);
  void finalize();

 private:
  void reset();
  cudnnBackendDescriptor_t data_ = nullptr;
};

// A tensor of a graph: 16-byte aligned, strides in elements.
struct CudnnTensor {
  int64_t id = 0;
  cudnnDataType_t type = CUDNN_DATA_BFLOAT16;
  std::vector<int64_t> extents, strides;
  bool by_value = false;    // a host scalar that execution reads
  bool is_virtual = false;  // between two operations, not in memory
};
CudnnDescriptor make_cudnn_tensor(const CudnnTensor& tensor);

// The target of a plan: a handle, or a finalised CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR.
struct CudnnTarget {
  cudnnHandle_t handle = nullptr;
  const CudnnDescriptor* device = nullptr;
};

// All of these throw CudnnRefusal.
CudnnDescriptor make_cudnn_graph(std::span<const CudnnDescriptor> operations,
                                 const CudnnTarget& target);
// Returns the engine configurations that cuDNN's heuristics propose and its checks accept, best
// first.
std::vector<CudnnDescriptor> propose_cudnn(const CudnnDescriptor& graph,
                                           cudnnBackendHeurMode_t mode, const CudnnTarget& target);
std::vector<cudnnBackendNumericalNote_t> cudnn_notes(const CudnnDescriptor& configuration);
CudnnDescriptor make_cudnn_plan(const CudnnDescriptor& configuration, const CudnnTarget& target);
int64_t cudnn_workspace(const CudnnDescriptor& plan);  // bytes
void execute_cudnn(cudnnHandle_t handle, const CudnnDescriptor& plan, std::span<const int64_t> ids,
                   std::span<void* const> pointers, void* workspace);

}  // namespace weft::cuda
