// Captures and graphs. A graph's nodes run in an order that respects their dependencies but
// otherwise differs from the order of capture, so that a missing dependency shows. A node that
// cannot go on holds up the nodes that depend on it alone.
#include <queue>

#include "tests/cuda/machine.h"

namespace weft::emulated {
struct Step {  // a node, with the nodes that follow it
  Work work;
  int missing = 0;  // the number of nodes that it follows
  std::vector<int> before{};
};
}  // namespace weft::emulated

struct CUgraph_st {
  std::vector<weft::emulated::Node> nodes;
};
struct CUgraphExec_st {
  std::shared_ptr<const std::vector<weft::emulated::Step>> steps;
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

std::vector<Step> steps_of(const std::vector<Node>& nodes) {
  std::vector<Step> steps;
  for (const Node& node : nodes) {
    const std::set<int> after(node.after.begin(), node.after.end());
    for (const int each : after) steps[each].before.push_back(static_cast<int>(steps.size()));
    steps.push_back({node.work, static_cast<int>(after.size())});
  }
  return steps;
}

// One launch of a graph. Its copies of the work are its own, because work may keep what it has
// done.
class Launch {
 public:
  explicit Launch(std::shared_ptr<const std::vector<Step>> steps)
      : steps_(std::move(steps)), missing_(steps_->size()) {
    for (size_t i = 0; i < steps_->size(); ++i)
      if ((missing_[i] = (*steps_)[i].missing) == 0) ready_.push(static_cast<int>(i));
  }

  bool operator()() {
    for (auto at = begun_.begin(); at != begun_.end();) {
      if (machine().status != cudaSuccess) return true;
      if (at->second.run()) {
        finish(at->first);
        at = begun_.erase(at);
      } else {
        ++at;
      }
    }
    while (!ready_.empty()) {
      if (machine().status != cudaSuccess) return true;
      const int node = ready_.top();
      ready_.pop();
      Work work = (*steps_)[node].work;
      if (work.run())
        finish(node);
      else
        begun_.emplace(node, std::move(work));
    }
    return begun_.empty();
  }

 private:
  void finish(int node) {
    ++machine().changes;
    for (const int next : (*steps_)[node].before)
      if (--missing_[next] == 0) ready_.push(next);
  }

  std::shared_ptr<const std::vector<Step>> steps_;
  std::vector<int> missing_;
  std::priority_queue<int> ready_;  // the latest captured first
  std::map<int, Work> begun_;       // the nodes that cannot go on yet
};

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
  *exec = new CUgraphExec_st{std::make_shared<const std::vector<Step>>(steps_of(graph->nodes))};
  return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  const Lock lock(machine().mutex);
  ++machine().graph_launches;
  bool on_its_own = false;
  for (const Step& step : *exec->steps) on_its_own |= step.work.on_its_own;
  return told(submit(stream_of(stream), {Launch(exec->steps), on_its_own}));
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
