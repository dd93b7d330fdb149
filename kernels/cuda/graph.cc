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

namespace {

// Records `work`. Returns null if the recording was lost: calls of other threads do not belong to
// it, but those that wait for the whole device invalidate it.
cudaGraph_t recorded(cudaStream_t stream, const std::function<void()>& work) {
  cudaGraph_t graph = nullptr;
  WEFT_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  try {
    work();
  } catch (const std::exception& error) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaStreamIsCapturing(stream, &status);
    cudaStreamEndCapture(stream, &graph);
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();
    if (status != cudaStreamCaptureStatusInvalidated || dynamic_cast<const NotRecordable*>(&error))
      throw;
    return nullptr;
  }
  const cudaError_t status = cudaStreamEndCapture(stream, &graph);
  if (status != cudaErrorStreamCaptureInvalidated) WEFT_CUDA_CHECK(status);
  cudaGetLastError();
  return graph;
}

}  // namespace

bool DeviceGraph::record(Stream& stream, const std::function<void()>& work) {
  impl_.reset();
  CudaQueue& queue = cuda_queue(stream);
  cudaGraph_t graph = recorded(queue.stream(), work);
  if (!graph) graph = recorded(queue.stream(), work);
  if (!graph) return false;
  auto made = std::make_unique<Impl>();
  const cudaError_t status = cudaGraphInstantiate(&made->executable, graph, 0);
  cudaGraphDestroy(graph);
  WEFT_CUDA_CHECK(status);
  impl_ = std::move(made);
  return true;
}

void DeviceGraph::launch(Stream& stream) {
  CHECK(impl_, "nothing was recorded");
  WEFT_CUDA_CHECK(cudaGraphLaunch(impl_->executable, cuda_queue(stream).stream()));
}

}  // namespace weft
