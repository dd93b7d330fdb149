#pragma once
// cuDNN's graph of a convolution: channels last, f32 sums, the bias behind them.
#include <compare>

#include "kernels/cuda/conv_library.h"
#include "kernels/cuda/cudnn.h"

namespace weft::cuda {

// What a plan depends on.
struct ConvShape {
  DType dtype;
  std::array<int64_t, 4> x, out;  // F, H, W, C
  std::array<int64_t, 3> kernel, stride;
  int64_t pad_front;
  std::array<int64_t, 2> pad_h, pad_w;
  bool bias;
  auto operator<=>(const ConvShape&) const = default;

  static ConvShape of(const LibraryConv& conv);
};

// Unique ids of the plan's tensors.
enum ConvTensor : int64_t { kConvX = 1, kConvWeight, kConvOut, kConvBias, kConvSum };

// Engine configurations in the order to try them: those that add in f32, always in the same order,
// of f32 none that multiplies in TF32. Throws CudnnRefusal.
std::vector<CudnnDescriptor> propose_conv(const ConvShape& shape, const CudnnTarget& target);

}  // namespace weft::cuda
