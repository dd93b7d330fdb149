#pragma once
// Convolutions by a library: cuDNN (conv_cudnn.cc), or plain loops where tests run on a host.
// library_conv() refuses what the library cannot do; conv.cu has a kernel for everything.
#include <string>

#include "kernels/conv.h"

namespace weft::cuda {

struct LibraryConv {
  DType dtype = DType::kBF16;          // f32 or bf16: of x, weight and out; sums in f32, never TF32
  std::array<int64_t, 4> x_shape{};    // F, H, W, Cin; Cin a multiple of 8
  std::array<int64_t, 4> out_shape{};  // F', H', W', Cout; Cout a multiple of 8
  std::array<int64_t, 3> kernel{1, 1, 1};  // time, height, width
  ConvArgs args;
  const void* x = nullptr;
  const void* weight = nullptr;  // [Cout, kt, kh, kw, Cin]
  const float* bias = nullptr;   // [Cout] or null; added in f32 before the one rounding
  void* out = nullptr;
  size_t scratch_used = 0;  // the queue's scratch holds this many bytes of the caller's data
};

// Enqueues the convolution on the stream; all operands are dense and 16-byte aligned. Returns false
// and does nothing if the library has no plan for the shape.
bool library_conv(const Stream& stream, const LibraryConv& conv);

// Says why the library refused the last shape that it refused on this stream, or "".
std::string library_conv_refusal(const Stream& stream);

}  // namespace weft::cuda
