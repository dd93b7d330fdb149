// sdpa.h by cuDNN: one plan per shape, kept with the queue.
#include <map>
#include <optional>

#include "kernels/cuda/cudnn_plans.h"
#include "kernels/cuda/sdpa_graph.h"
#include "kernels/device_plan.h"

namespace weft::cuda {

namespace {

struct Library {
  explicit Library(CudaQueue& queue) {
    check_cudnn(cudnnCreate(&handle), "cudnnCreate");
    check_cudnn(cudnnSetStream(handle, queue.stream()), "cudnnSetStream");
  }
  ~Library() {
    plans.clear();
    cudnnDestroy(handle);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  cudnnHandle_t handle = nullptr;
  std::map<SdpaShape, CudnnPlan> plans;
};

// Belongs to a queue. If cuDNN cannot be loaded, `refusal` says why.
struct Sdpas {
  explicit Sdpas(CudaQueue& queue) {
    try {
      library.emplace(queue);
    } catch (const CudnnRefusal& reason) {
      refusal = reason.text;
    }
  }
  std::optional<Library> library;
  std::string refusal;
};

CudnnPlan make_plan(CudaQueue& queue, Sdpas& sdpas, const SdpaShape& s) {
  CudnnPlan plan = make_kept_plan(
      queue, sdpas.library->handle,
      shape_text("sdpa", s.queries, s.keys, s.heads, s.kv_heads, s.size, s.q_row, s.q_head, s.k_row,
                 s.k_head, s.v_row, s.v_head, s.out_row, s.out_head, s.lse),
      kSdpaWorkspace, [&](const CudnnTarget& target) { return propose_sdpa(s, target); });
  if (!plan.descriptor) sdpas.refusal = plan.refusal;
  return plan;
}

void execute(CudaQueue& queue, Library& library, const CudnnPlan& plan, const Sdpa& problem) {
  float scale = problem.scale;  // passed by value: read before execute returns
  const int64_t ids[] = {kSdpaQ, kSdpaK, kSdpaV, kSdpaOut, kSdpaScale, kSdpaLse};
  void* const pointers[] = {const_cast<void*>(problem.q),
                            const_cast<void*>(problem.k),
                            const_cast<void*>(problem.v),
                            problem.out,
                            &scale,
                            problem.lse};
  const size_t count = problem.lse ? 6 : 5;
  void* const workspace = plan.workspace > 0
                              ? static_cast<char*>(queue.scratch(
                                    problem.scratch_used + static_cast<size_t>(plan.workspace))) +
                                    problem.scratch_used
                              : nullptr;
  execute_cudnn(library.handle, plan.descriptor, std::span(ids).first(count),
                std::span(pointers).first(count), workspace);
}

// Preparing a plan loads code, which is not allowed while a stream is being captured.
bool capturing(const CudaQueue& queue) {
  cudaStreamCaptureStatus status{};
  WEFT_CUDA_CHECK(cudaStreamIsCapturing(queue.stream(), &status));
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace

bool sdpa(const Stream& stream, const Sdpa& problem) {
  CudaQueue& queue = cuda_queue(stream);
  Sdpas& sdpas = queue.part<Sdpas>();
  if (!sdpas.library) return false;
  const SdpaShape shape = SdpaShape::of(problem);
  auto found = sdpas.library->plans.find(shape);
  if (found == sdpas.library->plans.end()) {
    if (capturing(queue)) return false;
    found = sdpas.library->plans.emplace(shape, make_plan(queue, sdpas, shape)).first;
  }
  const CudnnPlan& plan = found->second;
  if (!plan.descriptor) return false;
  try {
    execute(queue, *sdpas.library, plan, problem);
  } catch (const CudnnRefusal& reason) {
    throw Error(ErrorKind::kInternal, "attention by cuDNN: " + reason.text);
  }
  return true;
}

std::string sdpa_refusal(const Stream& stream) { return cuda_queue(stream).part<Sdpas>().refusal; }

}  // namespace weft::cuda
