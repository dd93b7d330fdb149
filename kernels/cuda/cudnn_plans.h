#pragma once
// Plans of cuDNN, one per shape. cuDNN compiles the code of many of them, 0.2 to 0.9 s each, so
// they are kept in a folder (keep_cuda_plans) for the processes that come after.
#include <functional>

#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/queue.h"

namespace weft::cuda {

struct CudnnPlan {
  CudnnDescriptor descriptor;  // empty if cuDNN refused
  int64_t workspace = 0;       // bytes
  std::string refusal;         // why it did
};

// `shape` states all that the proposals depend on, but for the device and cuDNN's version. The plan
// is the first of them that cuDNN makes and that takes at most `most` bytes of workspace.
CudnnPlan make_kept_plan(
    CudaQueue& queue, cudnnHandle_t handle, const std::string& shape, int64_t most,
    const std::function<std::vector<CudnnDescriptor>(const CudnnTarget&)>& propose);

// "name 1 2 3" of a shape's numbers.
template <class... Numbers>
std::string shape_text(const std::string& name, const Numbers&... numbers) {
  std::string text = name;
  const auto add = [&](const auto& value) {
    if constexpr (requires { value.begin(); })
      for (const auto& one : value) text += " " + std::to_string(one);
    else
      text += " " + std::to_string(static_cast<int64_t>(value));
  };
  (add(numbers), ...);
  return text;
}

}  // namespace weft::cuda
