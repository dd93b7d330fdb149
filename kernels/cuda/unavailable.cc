#include "kernels/cuda/device.h"
#include "kernels/cuda/nvtx.h"
#include "kernels/device_graph.h"
#include "kernels/device_plan.h"

namespace weft {

namespace {
[[noreturn]] void unavailable() {
  throw Error(
      ErrorKind::kUsage,
      "--device cuda: this build has no CUDA backend; configure with -DWEFT_CUDA=ON, or use "
      "--device cpu");
}
}  // namespace

int cuda_device_count() { unavailable(); }
std::string cuda_absence() { return "this build has no CUDA (cmake --preset cuda makes one)"; }
std::string cuda_versions() { return ""; }
std::string cuda_device_description(int) { unavailable(); }
CudaDeviceNames cuda_device_names(int) { unavailable(); }
bool cuda_attends_in_fp8(int) { unavailable(); }
void make_cuda_device_current(int) { unavailable(); }
void cuda_copy_bytes(Stream&, const void*, void*, size_t) { unavailable(); }
Stream cuda_stream(int, Determinism, int) { unavailable(); }
const char* to_string(AttentionPath) { return ""; }
void set_cuda_attention_path(AttentionPath) { unavailable(); }
void keep_cuda_plans(const std::string&) {}
AttentionPath last_cuda_attention_path(const Stream&) { unavailable(); }
const Ops& cuda_ops() { unavailable(); }
std::unique_ptr<GemmLimit> make_cuda_gemm_limit(Stream&, DType, int64_t, int64_t, int64_t) {
  unavailable();
}
std::vector<LibraryAnswer> ask_cuda_libraries(Stream&) { unavailable(); }

void* device_malloc(Device, size_t) { unavailable(); }
void device_free(Device, void*, size_t) {}
DeviceMemoryInfo device_memory_info(Device) { unavailable(); }
DeviceUse device_use(Device) { return {}; }
void reset_device_use_peak(Device) {}
DeviceTraits device_traits(Device) { unavailable(); }

struct DeviceRange::Pieces {};
DeviceRange::DeviceRange(Device, size_t) { unavailable(); }
DeviceRange::~DeviceRange() = default;
void DeviceRange::commit(size_t) {}
void DeviceRange::trim(size_t) {}

struct DeviceGraph::Impl {};
DeviceGraph::DeviceGraph() = default;
DeviceGraph::~DeviceGraph() = default;
DeviceGraph::DeviceGraph(DeviceGraph&&) noexcept = default;
DeviceGraph& DeviceGraph::operator=(DeviceGraph&&) noexcept = default;
bool DeviceGraph::record(Stream&, const std::function<void()>&) { unavailable(); }
void DeviceGraph::launch(Stream&) { unavailable(); }

PinnedMemory::PinnedMemory(size_t) { unavailable(); }
void PinnedMemory::Free::operator()(void*) const {}

// DeviceEvents only exist for CPU streams here, whose work is done when its call returns.
struct DeviceEvent::Impl {};
DeviceEvent::DeviceEvent() = default;
DeviceEvent::~DeviceEvent() = default;
DeviceEvent::DeviceEvent(DeviceEvent&&) noexcept = default;
DeviceEvent& DeviceEvent::operator=(DeviceEvent&&) noexcept = default;
void DeviceEvent::record(Stream&) {}
void DeviceEvent::wait_on(Stream&) {}
void DeviceEvent::sync() {}
bool DeviceEvent::done() { return true; }

struct DeviceClock::Impl {};
DeviceClock::DeviceClock() = default;
DeviceClock::~DeviceClock() = default;
DeviceClock::DeviceClock(DeviceClock&&) noexcept = default;
DeviceClock& DeviceClock::operator=(DeviceClock&&) noexcept = default;
void DeviceClock::begin(Stream&) {}
void DeviceClock::end(Stream&) {}
double DeviceClock::seconds() { return 0; }

void cuda::push_range(const char*) {}
void cuda::pop_range() {}

}  // namespace weft
