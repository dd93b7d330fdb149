#include "kernels/linear.h"

#include "kernels/ops.h"
#include "kernels/view_checks.h"

namespace weft {

PackedLinear pack_linear(Stream& stream, const TensorView& weight, const TensorView& bias,
                         DType dtype, WeightFormat format) {
  CHECK(is_compute(dtype), "dtype", to_string(dtype));
  CHECK(weight.rank == 2 && is_float(weight.dtype) && weight.count() > 0 && is_near(stream, weight),
        "weight", weight.to_string_shape());
  // The largest possible int8 dot product must fit 32 bits.
  CHECK(format != WeightFormat::kInt8 || weight[1] <= INT32_MAX / (255 * 127), "weight",
        weight.to_string_shape());
  CHECK(!bias || (bias.rank == 1 && bias[0] == weight[0] && is_float(bias.dtype) &&
                  is_near(stream, bias)),
        "bias", bias.to_string_shape(), "weight", weight.to_string_shape());
  return stream.ops().linear.pack_linear(stream, weight, bias, dtype, format);
}

void linear(Stream& stream, const TensorView& x, const PackedLinear& packed,
            LinearActivation activation, const TensorView& out) {
  CHECK(packed && is_rows(stream, x) && x[-1] == packed.in() && x.dtype == packed.dtype(), "x",
        x.to_string_shape(), "packed", packed.in(), packed.out(), to_string(packed.dtype()));
  CHECK(is_rows(stream, out) && out[-1] == packed.out() && out.rows() == x.rows() &&
            (out.dtype == x.dtype || out.dtype == DType::kF32),
        "out", out.to_string_shape(), "x", x.to_string_shape());
  if (x.rows() == 0) return;
  CHECK(out.data != x.data, "linear cannot run in place");
  stream.ops().linear.linear(stream, x, packed, activation, out);
}

}  // namespace weft
