// Captures and graphs. A graph's nodes run in an order that respects their dependencies but
// otherwise differs from the order of capture, so that a missing dependency shows.
#include <queue>

#include "tests/cuda/machine.h"

struct CUgraph_st {
  std::vector<weft::emulated::Node> nodes;
};
struct CUgraphExec_st {
  std::shared_ptr<std::vector<weft::emulated::Work>> work;
};

namespace weft::emulated {

namespace {

// True if every node precedes the end of the stream on which the capture began.
bool joined(const Capture& capture) {
  std::vector<bool> reached(capture.nodes.size());
  std::vector<int> open = capture.origin->frontier;
  while (!open.empty()) {
    const int node = open.back();
    open.pop_back();
    if (reached[node]) continue;
    reached[node] = true;
    open.insert(open.end(), capture.nodes[node].after.begin(), capture.nodes[node].after.end());
  }
  for (const bool each : reached)
    if (!each) return false;
  return true;
}

std::vector<Work> ordered(const std::vector<Node>& nodes) {
  std::vector<int> missing(nodes.size());
  std::vector<std::vector<int>> before(nodes.size());
  std::priority_queue<int> ready;  // the latest captured first
  for (size_t i = 0; i < nodes.size(); ++i) {
    const std::set<int> after(nodes[i].after.begin(), nodes[i].after.end());
    missing[i] = static_cast<int>(after.size());
    for (const int node : after) before[node].push_back(static_cast<int>(i));
    if (after.empty()) ready.push(static_cast<int>(i));
  }
  std::vector<Work> work;
  while (!ready.empty()) {
    const int node = ready.top();
    ready.pop();
    work.push_back(nodes[node].work);
    for (const int next : before[node])
      if (--missing[next] == 0) ready.push(next);
  }
  return work;
}

}  // namespace

}  // namespace weft::emulated

using namespace weft::emulated;  // NOLINT: CUDA's functions are global

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  const Lock lock(machine().mutex);
  if (!handle) return told(cudaErrorStreamCaptureUnsupported);  // the default stream
  if (handle->capture) return told(cudaErrorInvalidValue);
  handle->capture = std::make_shared<Capture>();
  handle->capture->origin = handle;
  handle->capture->mode = mode;
  handle->capture->thread = this_thread_id();
  handle->capture->streams = {handle};
  handle->frontier.clear();
  machine().captures.push_back(handle->capture);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const Lock lock(machine().mutex);
  *graph = nullptr;
  const std::shared_ptr<Capture> capture = stream ? stream->capture : nullptr;
  if (!capture || capture->origin != stream) return told(cudaErrorStreamCaptureUnmatched);
  if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != this_thread_id())
    return told(cudaErrorStreamCaptureWrongThread);
  const bool whole = joined(*capture);
  std::erase(machine().captures, capture);
  capture->ended = true;
  for (CUstream_st* each : capture->streams) each->capture.reset();
  if (capture->invalid) return told(cudaErrorStreamCaptureInvalidated);
  if (!whole) return told(cudaErrorStreamCaptureUnjoined);
  *graph = new CUgraph_st{std::move(capture->nodes)};
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  const Lock lock(machine().mutex);
  const CUstream_st& stream = stream_of(handle);
  *status = !stream.capture           ? cudaStreamCaptureStatusNone
            : stream.capture->invalid ? cudaStreamCaptureStatusInvalidated
                                      : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  const Lock lock(machine().mutex);
  *exec = new CUgraphExec_st{std::make_shared<std::vector<Work>>(ordered(graph->nodes))};
  return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  const Lock lock(machine().mutex);
  ++machine().graph_launches;
  return told(submit(stream_of(stream), [all = exec->work] {
    for (const Work& work : *all) {
      if (machine().status != cudaSuccess) return;
      work();
    }
  }));
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
