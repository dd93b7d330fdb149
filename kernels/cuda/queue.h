#pragma once
// A CudaQueue is a CUDA stream with the state that the op families keep beside it. This is the only
// header of this folder that host files include to reach the runtime.
#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <string>
#include <typeindex>

#include "kernels/stream.h"

namespace weft {

// Throws Error(kInternal) with the call's text, place and reason, or Error(kMemory) if memory ran
// out.
void check_cuda(cudaError_t status, const char* call, const char* file, int line);
#define WEFT_CUDA_CHECK(call) ::weft::check_cuda((call), #call, __FILE__, __LINE__)

// check_cuda() throws this for a call that no recording of a stream may contain.
struct NotRecordable : Error {
  using Error::Error;
};

// Makes `device` the calling thread's device for the scope's lifetime.
class CudaDeviceScope {
 public:
  explicit CudaDeviceScope(int index);
  ~CudaDeviceScope();
  CudaDeviceScope(const CudaDeviceScope&) = delete;
  CudaDeviceScope& operator=(const CudaDeviceScope&) = delete;

 private:
  int before_ = 0;
};

struct CudaProperties {
  int multiprocessors = 0;
  int major = 0, minor = 0;     // compute capability
  size_t shared_per_block = 0;  // the most dynamic shared memory a block may ask for
  size_t l2_bytes = 0;
  std::string name;
};

class CudaQueue final : public DeviceQueue {
 public:
  explicit CudaQueue(int index);
  ~CudaQueue() override;

  void sync() override;
  void trim() override;
  int multiprocessors() const override { return properties_.multiprocessors; }
  cudaStream_t stream() const { return stream_; }
  int index() const { return index_; }
  const CudaProperties& properties() const { return properties_; }

  // Returns 256-byte aligned device memory for the duration of one op; the next op of this queue
  // may overwrite it. Its address never changes, so captured graphs may hold it until trim().
  void* scratch(size_t bytes);
  size_t scratch_asked() const { return scratch_asked_; }  // the maximum since trim()

  // Returns the state that an op family keeps with the queue (a library's handle, plans by shape).
  // It is made by T(queue) at its first use and destroyed before the stream.
  template <class T>
  T& part() {
    std::shared_ptr<void>& slot = parts_[typeid(T)];
    if (!slot) slot = std::make_shared<T>(*this);
    return *static_cast<T*>(slot.get());
  }

 private:
  std::string described() const;  // the device, for messages
  void check_code() const;        // throws Error(kUsage) where the binary has none for the device

  int index_;
  CudaProperties properties_;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<DeviceRange> scratch_;
  size_t scratch_asked_ = 0;
  std::map<std::type_index, std::shared_ptr<void>> parts_;
};

// Waits for the work of all queues of a device, except for queues that are being recorded: waiting
// would invalidate the recording (as cudaDeviceSynchronize does), and that work does not run yet.
void wait_for_queues(int index);

// Returns the queue of a CUDA stream and makes its device the calling thread's.
CudaQueue& cuda_queue(const Stream& stream);

namespace cuda {
// Says whether the binary has code of our kernels for the calling thread's device (copy.cu).
cudaError_t code_status();
}  // namespace cuda

}  // namespace weft
