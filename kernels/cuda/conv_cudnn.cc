// conv_library.h by cuDNN: one plan per shape, kept with the queue.
#include <optional>

#include "kernels/cuda/conv_graph.h"
#include "kernels/cuda/cudnn_plans.h"
#include "kernels/cuda/plan_cache.h"
#include "kernels/cuda/queue.h"
#include "kernels/device_plan.h"

namespace weft::cuda {

namespace {

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
  std::optional<PlanCache<ConvShape, CudnnPlan>> plans{std::in_place};
  std::string refusal;
};

CudnnPlan make_plan(CudaQueue& queue, Library& library, const ConvShape& s) {
  CudnnPlan plan = make_kept_plan(
      queue, library.handle,
      shape_text("conv", s.dtype, s.x, s.out, s.kernel, s.stride, s.pad_front, s.pad_h, s.pad_w,
                 s.bias),
      kConvWorkspace, [&](const CudnnTarget& target) { return propose_conv(s, target); });
  if (!plan.descriptor) library.refusal = plan.refusal;
  return plan;
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
  const CudnnPlan& plan =
      library.plans->get(shape, [&] { return make_plan(queue, library, shape); });
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
