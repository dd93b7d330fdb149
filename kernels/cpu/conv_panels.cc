#include "kernels/cpu/conv_panels.h"

#include <algorithm>
#include <cstring>

namespace weft::cpu {

namespace {

// Gathers the window of every output pixel as a row of the left operand; taps outside x are zero.
struct Windows {
  TensorView x;
  std::array<int64_t, 3> kernel, stride, pad, out;  // pad: before each extent
};

void gather_window(const Windows& at, int64_t pixel, int64_t k, int64_t depth, float* to) {
  const int64_t in = at.x[3];
  const int64_t ow = pixel % at.out[2] * at.stride[2] - at.pad[2];
  const int64_t oh = pixel / at.out[2] % at.out[1] * at.stride[1] - at.pad[1];
  const int64_t of = pixel / at.out[2] / at.out[1] * at.stride[0] - at.pad[0];
  for (int64_t tap = k / in, channel = k % in; depth > 0; ++tap, channel = 0) {
    const int64_t count = std::min(in - channel, depth);
    const int64_t w = ow + tap % at.kernel[2];
    const int64_t h = oh + tap / at.kernel[2] % at.kernel[1];
    const int64_t f = of + tap / at.kernel[2] / at.kernel[1];
    const bool inside = f >= 0 && f < at.x[0] && h >= 0 && h < at.x[1] && w >= 0 && w < at.x[2];
    const int64_t from = ((f * at.x[1] + h) * at.x[2] + w) * in + channel;
    if (!inside)
      std::memset(to, 0, count * sizeof(float));
    else if (at.x.dtype == DType::kF32)
      std::memcpy(to, static_cast<const float*>(at.x.data) + from, count * sizeof(float));
    else
      widen_bf16(static_cast<const bf16*>(at.x.data) + from, count, to);
    to += count;
    depth -= count;
  }
}

void gather_windows(const void* context, int64_t row, int64_t rows, int64_t k, int64_t depth,
                    float* out) {
  for (int64_t r = 0; r < rows; ++r)
    gather_window(*static_cast<const Windows*>(context), row + r, k, depth, out + r * depth);
}

}  // namespace

ConvPanels::ConvPanels(Stream& stream, const TensorView& weight, DType dtype, int64_t block) {
  const int64_t depth = weight[1] * weight[2] * weight[3] * weight[4];
  data_ = Tensor(dtype, {(weight[0] + block - 1) / block, depth, block}, stream.device());
  pack_panels(stream, weight.permute({0, 2, 3, 4, 1}), dtype, block, depth * block,
              data_.view().data);
}

int64_t ConvPanels::widest_block(int64_t out) {
  const auto padded = [&](int64_t block) { return (out + block - 1) / block * block; };
  int64_t best = 16;
  for (int64_t block : {32, 48, 64})
    if (padded(block) <= padded(best)) best = block;
  return best;
}

void ConvPanels::run(Stream& stream, const TensorView& x, const PackedConv& packed,
                     const ConvArgs& args, const TensorView& out) const {
  const TensorView& data = data_.view();
  const Windows windows{.x = x,
                        .kernel = packed.kernel(),
                        .stride = args.stride,
                        .pad = {args.pad_front, args.pad_h[0], args.pad_w[0]},
                        .out = {out[0], out[1], out[2]}};
  panel_gemm(stream, {.weight = {.data = data.data,
                                 .dtype = data.dtype,
                                 .in = data[1],
                                 .out = packed.out(),
                                 .block = data[2],
                                 .stride = data[1] * data[2]},
                      .rows = out[0] * out[1] * out[2],
                      .gather = gather_windows,
                      .context = &windows,
                      .bias = packed.bias(),
                      .out = out.data,
                      .out_dtype = out.dtype,
                      .out_stride = packed.out()});
}

}  // namespace weft::cpu
