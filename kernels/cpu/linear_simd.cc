// Linear with Highway alone: panels, on any machine.
#include "kernels/cpu/linear_fp8.h"
#include "kernels/cpu/linear_int8.h"
#include "kernels/cpu/linear_panels.h"
#include "kernels/cpu/tables.h"
#include "kernels/ops.h"

namespace weft::cpu {

namespace {

PackedLinear pack_linear(Stream& stream, const TensorView& weight, const TensorView& bias,
                         DType dtype, WeightFormat format) {
  if (format == WeightFormat::kInt8) return pack_linear_int8(stream, weight, bias, dtype);
  if (is_fp8(format)) return pack_linear_fp8(stream, weight, bias, dtype, format);
  PackedLinear packed;
  packed.out_ = weight[0];
  packed.in_ = weight[1];
  packed.dtype_ = dtype;
  auto* panels = new LinearPanels(stream, weight, dtype);
  packed.storage_ = {panels, [](void* data) { delete static_cast<LinearPanels*>(data); }};
  packed.bytes_ = panels->bytes();
  if (bias) {
    packed.bias_ = Tensor(DType::kF32, bias.shape());
    copy(stream, bias, packed.bias_);
    packed.bytes_ += packed.bias_.view().bytes();
  }
  return packed;
}

void linear(Stream& stream, const TensorView& x, const PackedLinear& packed,
            LinearActivation activation, const TensorView& out) {
  if (packed.format() == WeightFormat::kInt8) {
    linear_int8(stream, x, packed, activation, out);
    return;
  }
  if (is_fp8(packed.format())) {
    linear_fp8(stream, x, packed, activation, out);
    return;
  }
  static_cast<const LinearPanels*>(packed.storage_.get())
      ->run(stream, x, packed.has_bias() ? packed.bias_.as<float>() : nullptr, activation, out);
}

}  // namespace

void fill_linear_simd(Ops& ops) { ops.linear = {.pack_linear = pack_linear, .linear = linear}; }

}  // namespace weft::cpu
