#include "kernels/conv.h"

#include "kernels/linear.h"
#include "kernels/ops.h"
#include "kernels/view_checks.h"

namespace weft {

PackedConv pack_conv(Stream& stream, const TensorView& weight, const TensorView& bias,
                     DType dtype) {
  CHECK(is_compute(dtype), "dtype", to_string(dtype));
  CHECK((weight.rank == 4 || weight.rank == 5) && is_float(weight.dtype) && weight.count() > 0 &&
            is_near(stream, weight),
        "weight", weight.to_string_shape());
  CHECK(!bias || (bias.rank == 1 && bias[0] == weight[0] && is_float(bias.dtype) &&
                  is_near(stream, bias)),
        "bias", bias.to_string_shape(), "weight", weight.to_string_shape());
  const Tensor rounded = bias ? rounded_bias(stream, bias, dtype) : Tensor();
  if (weight.rank == 5) return stream.ops().conv.pack_conv(stream, weight, rounded, dtype);
  // A 2D kernel is a 3D kernel of one frame: insert the time dimension.
  TensorView weight5 = weight;
  weight5.rank = 5;
  for (int i = 4; i > 2; --i) {
    weight5.extent[i] = weight.extent[i - 1];
    weight5.stride[i] = weight.stride[i - 1];
  }
  weight5.extent[2] = 1;
  weight5.stride[2] = weight.stride[2] * weight.extent[2];
  return stream.ops().conv.pack_conv(stream, weight5, rounded, dtype);
}

std::array<int64_t, 4> conv_output_shape(const TensorView& x, const PackedConv& packed,
                                         const ConvArgs& args) {
  CHECK(x.rank == 4, "x", x.to_string_shape());
  const std::array<int64_t, 3> padded{x[0] + args.pad_front, x[1] + args.pad_h[0] + args.pad_h[1],
                                      x[2] + args.pad_w[0] + args.pad_w[1]};
  std::array<int64_t, 4> shape{0, 0, 0, packed.out()};
  for (int i = 0; i < 3; ++i) {
    CHECK(args.stride[i] > 0, "stride", args.stride[i]);
    const int64_t last_start = padded[i] - packed.kernel()[i];
    shape[i] = last_start < 0 ? 0 : last_start / args.stride[i] + 1;
  }
  return shape;
}

void conv3d(Stream& stream, const TensorView& x, const PackedConv& packed, const ConvArgs& args,
            const TensorView& out) {
  CHECK(packed && x.rank == 4 && x.contiguous() && x[3] == packed.in() &&
            x.dtype == packed.dtype() && x.device == stream.device(),
        "x", x.to_string_shape(), "packed", packed.in(), packed.out(), to_string(packed.dtype()));
  const std::array<int64_t, 4> shape = conv_output_shape(x, packed, args);
  CHECK(out.rank == 4 && out.contiguous() && out.dtype == packed.dtype() && out[0] == shape[0] &&
            out[1] == shape[1] && out[2] == shape[2] && out[3] == shape[3],
        "out", out.to_string_shape(), "expected", shape[0], shape[1], shape[2], shape[3]);
  if (out.count() == 0) return;
  CHECK(out.data != x.data, "conv3d cannot run in place");
  stream.ops().conv.conv3d(stream, x, packed, args, out);
}

void upsample_nearest2(Stream& stream, const TensorView& x, const TensorView& out) {
  CHECK(x.rank == 4 && out.rank == 4 && x.dtype == out.dtype && is_compute(x.dtype) &&
            x.contiguous() && out.contiguous(),
        "x", x.to_string_shape(), "out", out.to_string_shape());
  CHECK(out[0] == x[0] && out[1] == 2 * x[1] && out[2] == 2 * x[2] && out[3] == x[3], "x",
        x.to_string_shape(), "out", out.to_string_shape());
  if (x.count() == 0) return;
  stream.ops().conv.upsample_nearest2(stream, x, out);
}

}  // namespace weft
