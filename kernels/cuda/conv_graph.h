#pragma once
// cuDNN's graph of a convolution: channels last, f32 sums, then the bias.
#include <compare>

#include "kernels/cuda/conv_library.h"
#include "kernels/cuda/cudnn.h"

namespace weft::cuda {

// A ConvShape is everything a plan depends on.
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

// These are the unique ids of the plan's tensors.
enum ConvTensor : int64_t { kConvX = 1, kConvWeight, kConvOut, kConvBias, kConvSum };

// Returns engine configurations in the order to try them. All of them add in f32, always in the
// same order; for f32 none multiplies in TF32. Throws CudnnRefusal.
std::vector<CudnnDescriptor> propose_conv(const ConvShape& shape, const CudnnTarget& target);

}  // namespace weft::cuda
