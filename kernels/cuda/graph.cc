#include "kernels/cuda/queue.h"
#include "kernels/device_graph.h"

namespace weft {

struct DeviceGraph::Impl {
  ~Impl() {
    if (executable) cudaGraphExecDestroy(executable);
  }
  cudaGraphExec_t executable = nullptr;
};

DeviceGraph::DeviceGraph() = default;
DeviceGraph::~DeviceGraph() = default;
DeviceGraph::DeviceGraph(DeviceGraph&&) noexcept = default;
DeviceGraph& DeviceGraph::operator=(DeviceGraph&&) noexcept = default;

void DeviceGraph::record(Stream& stream, const std::function<void()>& work) {
  impl_.reset();
  CudaQueue& queue = cuda_queue(stream);
  cudaGraph_t graph = nullptr;
  // Calls of other threads do not belong to this recording.
  WEFT_CUDA_CHECK(cudaStreamBeginCapture(queue.stream(), cudaStreamCaptureModeThreadLocal));
  try {
    work();
  } catch (...) {
    cudaStreamEndCapture(queue.stream(), &graph);
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();
    throw;
  }
  WEFT_CUDA_CHECK(cudaStreamEndCapture(queue.stream(), &graph));
  auto made = std::make_unique<Impl>();
  const cudaError_t status = cudaGraphInstantiate(&made->executable, graph, 0);
  cudaGraphDestroy(graph);
  WEFT_CUDA_CHECK(status);
  impl_ = std::move(made);
}

void DeviceGraph::launch(Stream& stream) {
  CHECK(impl_, "nothing was recorded");
  WEFT_CUDA_CHECK(cudaGraphLaunch(impl_->executable, cuda_queue(stream).stream()));
}

}  // namespace weft
