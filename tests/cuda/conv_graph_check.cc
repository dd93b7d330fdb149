// Proves, without a device, that cuDNN has engines for the VAE's convolutions on an H200. The
// plan's code is generated too; only loading it needs a driver, so only that step may fail here.
#include <cstdio>

#include "kernels/cuda/conv_graph.h"
#include "tests/cuda/described_device.h"

namespace weft::cuda {
namespace {

struct ConvGraph {
  const char* name;
  std::array<int64_t, 4> x;
  int64_t out;
  std::array<int64_t, 3> kernel;
  ConvArgs args;
};

ConvShape conv_shape_of(const ConvGraph& c, DType dtype) {
  const auto extent = [](int64_t size, int64_t kernel, int64_t stride) {
    return (size - kernel) / stride + 1;
  };
  const auto& [pad_h, pad_w] = std::pair(c.args.pad_h, c.args.pad_w);
  return {dtype,
          c.x,
          {extent(c.x[0] + c.args.pad_front, c.kernel[0], c.args.stride[0]),
           extent(c.x[1] + pad_h[0] + pad_h[1], c.kernel[1], c.args.stride[1]),
           extent(c.x[2] + pad_w[0] + pad_w[1], c.kernel[2], c.args.stride[2]), c.out},
          c.kernel,
          c.args.stride,
          c.args.pad_front,
          pad_h,
          pad_w,
          dtype == DType::kBF16};
}

bool check_conv_graph(const ConvGraph& c, DType dtype, const CudnnTarget& target) {
  size_t engines = 0;
  bool made = false;
  std::string reason;
  try {
    const std::vector<CudnnDescriptor> configurations =
        propose_conv(conv_shape_of(c, dtype), target);
    engines = configurations.size();
    if (engines > 0) make_cudnn_plan(configurations[0], target);
    made = engines > 0;
  } catch (const CudnnRefusal& refusal) {
    made = refusal.status == CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER;
    reason = refusal.text;
  }
  std::printf("%s %s %s: %zu engines %s\n", made ? "ok  " : "FAIL", c.name,
              std::string(to_string(dtype)).c_str(), engines, made ? "" : reason.c_str());
  return made;
}

constexpr ConvArgs kSame{.pad_h = {1, 1}, .pad_w = {1, 1}};
const ConvGraph kConvGraphs[] = {
    {"volume 384", {6, 60, 104, 384}, 384, {3, 3, 3}, kSame},
    {"volume 96", {6, 480, 832, 96}, 96, {3, 3, 3}, kSame},
    {"volume 16", {3, 60, 104, 16}, 384, {3, 3, 3}, kSame},
    {"pictures 192", {4, 240, 416, 384}, 192, {1, 3, 3}, kSame},
    {"halo band", {6, 62, 104, 384}, 384, {3, 3, 3}, {.pad_h = {1, 0}, .pad_w = {1, 1}}},
    {"time only", {5, 60, 104, 384}, 768, {3, 1, 1}, {}},
    {"halved pictures",
     {4, 480, 832, 96},
     96,
     {1, 3, 3},
     {.stride = {1, 2, 2}, .pad_h = {0, 1}, .pad_w = {0, 1}}},
    {"halved time", {5, 60, 104, 384}, 384, {3, 1, 1}, {.stride = {2, 1, 1}}},
    {"front",
     {4, 60, 104, 384},
     384,
     {3, 3, 3},
     {.pad_front = 2, .pad_h = {1, 1}, .pad_w = {1, 1}}},
};

int run_conv_checks() {
  const CudnnDescriptor device = describe_h200();
  const CudnnTarget target{.device = &device};
  bool all = true;
  for (DType dtype : {DType::kBF16, DType::kF32})
    for (const ConvGraph& c : kConvGraphs) all &= check_conv_graph(c, dtype, target);
  return all ? 0 : 1;
}

}  // namespace
}  // namespace weft::cuda

int main() { return weft::cuda::exit_code_of(weft::cuda::run_conv_checks); }
