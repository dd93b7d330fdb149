// conv_library.h by cuDNN: one plan per shape, kept with the queue.
#include <optional>

#include "kernels/cuda/conv_graph.h"
#include "kernels/cuda/plan_cache.h"
#include "kernels/cuda/queue.h"
#include "kernels/device_plan.h"

namespace weft::cuda {

namespace {

struct Plan {
  CudnnDescriptor descriptor;  // empty if cuDNN refused
  int64_t workspace = 0;
};

// One Library belongs to a queue. If cuDNN cannot be loaded, every shape is refused.
struct Library {
  explicit Library(CudaQueue& queue) {
    try {
      check_cudnn(cudnnCreate(&handle), "cudnnCreate");
      check_cudnn(cudnnSetStream(handle, queue.stream()), "cudnnSetStream");
    } catch (const CudnnRefusal& reason) {
      if (handle) cudnnDestroy(handle);
      handle = nullptr;
      refusal = reason.text;
    }
  }
  ~Library() {
    plans.reset();
    if (handle) cudnnDestroy(handle);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  cudnnHandle_t handle = nullptr;
  std::optional<PlanCache<ConvShape, Plan>> plans{std::in_place};
  std::string refusal;
};

Plan make_plan(Library& library, const ConvShape& shape) {
  const CudnnTarget target{.handle = library.handle};
  std::string refusal = "cuDNN has no engine within the contract for this shape";
  try {
    for (const CudnnDescriptor& configuration : propose_conv(shape, target)) try {
        Plan plan{.descriptor = make_cudnn_plan(configuration, target)};
        plan.workspace = cudnn_workspace(plan.descriptor);
        if (plan.workspace <= static_cast<int64_t>(kConvWorkspace)) return plan;
        refusal = "the plan needs " + std::to_string(plan.workspace) + " bytes of workspace";
      } catch (const CudnnRefusal& reason) {  // the next configuration may work
        refusal = reason.text;
      }
  } catch (const CudnnRefusal& reason) {  // conv.cu then computes it
    refusal = reason.text;
  }
  library.refusal = refusal;
  return {};
}

}  // namespace

bool library_conv(const Stream& stream, const LibraryConv& conv) {
  CudaQueue& queue = cuda_queue(stream);
  Library& library = queue.part<Library>();
  if (!library.handle) return false;
  const ConvShape shape = ConvShape::of(conv);
  // Preparing a plan loads code, which is not allowed while a stream is being captured.
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  WEFT_CUDA_CHECK(cudaStreamIsCapturing(queue.stream(), &status));
  if (status != cudaStreamCaptureStatusNone && !library.plans->has(shape)) return false;
  const Plan& plan = library.plans->get(shape, [&] { return make_plan(library, shape); });
  if (!plan.descriptor) return false;
  const size_t used = (conv.scratch_used + 255) / 256 * 256;
  void* workspace = nullptr;
  if (plan.workspace > 0)
    workspace =
        static_cast<char*>(queue.scratch(used + static_cast<size_t>(plan.workspace))) + used;
  const int64_t ids[] = {kConvX, kConvWeight, kConvOut, kConvBias};
  void* const pointers[] = {const_cast<void*>(conv.x), const_cast<void*>(conv.weight), conv.out,
                            const_cast<float*>(conv.bias)};
  const size_t count = conv.bias ? 4 : 3;
  try {
    execute_cudnn(library.handle, plan.descriptor, std::span(ids).first(count),
                  std::span(pointers).first(count), workspace);
  } catch (const CudnnRefusal& reason) {
    throw Error(ErrorKind::kInternal, "convolution by cuDNN: " + reason.text);
  }
  return true;
}

std::string library_conv_refusal(const Stream& stream) {
  return cuda_queue(stream).part<Library>().refusal;
}

}  // namespace weft::cuda
