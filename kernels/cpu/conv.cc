// Reference convolution: the definition, with f64 sums.
#include "kernels/conv.h"

#include <cstring>
#include <vector>

#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/reference.h"
#include "kernels/cpu/tables.h"
#include "kernels/ops.h"

namespace weft::cpu {

namespace {

// Weights are kept as [kt, kh, kw, Cout, Cin]: one dense dot product per tap and output channel.
PackedConv pack_conv(Stream& stream, const TensorView& weight, const TensorView& bias,
                     DType dtype) {
  PackedConv packed(weight, dtype);
  const TensorView taps_first = weight.permute({2, 3, 4, 0, 1});
  Tensor& stored = packed.make_storage<PlainWeights>().weight;
  stored = Tensor(dtype, taps_first.shape(), stream.device());
  copy(stream, taps_first, stored);
  packed.set_bias(stream, bias);
  return packed;
}

// Computes all channels of the output pixel at frame, row and column `at`.
template <class T>
void convolve_pixel(const TensorView& x, const PackedConv& packed, const ConvArgs& args,
                    std::array<int64_t, 3> at, T* out) {
  const T* weight = packed.storage<PlainWeights>().weight.as<T>();
  const float* bias = packed.bias();
  const int64_t in = packed.in(), channels = packed.out();
  std::vector<double> sum(channels);
  for (int64_t c = 0; c < channels; ++c) sum[c] = bias ? bias[c] : 0.0f;
  const auto [taps_t, taps_h, taps_w] = packed.kernel();
  for (int64_t kt = 0; kt < taps_t; ++kt)
    for (int64_t kh = 0; kh < taps_h; ++kh)
      for (int64_t kw = 0; kw < taps_w; ++kw, weight += channels * in) {
        const int64_t frame = at[0] * args.stride[0] + kt - args.pad_front;
        const int64_t row = at[1] * args.stride[1] + kh - args.pad_h[0];
        const int64_t column = at[2] * args.stride[2] + kw - args.pad_w[0];
        if (frame < 0 || frame >= x[0] || row < 0 || row >= x[1] || column < 0 || column >= x[2])
          continue;
        const T* pixel = x.as<T>() + ((frame * x[1] + row) * x[2] + column) * in;
        for (int64_t c = 0; c < channels; ++c) sum[c] += dot(pixel, weight + c * in, in);
      }
  for (int64_t c = 0; c < channels; ++c) out[c] = from_float<T>(static_cast<float>(sum[c]));
}

void conv3d(Stream& stream, const TensorView& x, const PackedConv& packed, const ConvArgs& args,
            const TensorView& out) {
  visit_dtype(x.dtype, [&](auto tag) {
    using T = decltype(tag);
    parallel_for(stream, out[0] * out[1], 1, [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line)
        for (int64_t w = 0; w < out[2]; ++w)
          convolve_pixel<T>(x, packed, args, {line / out[1], line % out[1], w},
                            out.as<T>() + (line * out[2] + w) * out[3]);
    });
  });
}

void upsample_nearest2(Stream& stream, const TensorView& x, const TensorView& out) {
  const int64_t width = x[2];
  const size_t pixel = x[3] * size_of(x.dtype);
  const char* from = static_cast<const char*>(x.data);
  char* to = static_cast<char*>(out.data);
  parallel_for(stream, x[0] * x[1], row_grain(4 * width * x[3]), [&](int64_t begin, int64_t end) {
    for (int64_t line = begin; line < end; ++line) {
      char* first = to + 4 * line * width * pixel;
      for (int64_t w = 0; w < 2 * width; ++w)
        std::memcpy(first + w * pixel, from + (line * width + w / 2) * pixel, pixel);
      std::memcpy(first + 2 * width * pixel, first, 2 * width * pixel);
    }
  });
}

}  // namespace

void fill_conv_reference(Ops& ops) {
  ops.conv = {.pack_conv = pack_conv, .conv3d = conv3d, .upsample_nearest2 = upsample_nearest2};
}

}  // namespace weft::cpu
