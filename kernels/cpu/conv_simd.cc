// Convolution with Highway alone: panels, on any machine.
#include "kernels/cpu/conv_panels.h"
#include "kernels/cpu/tables.h"
#include "kernels/ops.h"

namespace weft::cpu {

namespace {

PackedConv pack_conv(Stream& stream, const TensorView& weight, const TensorView& bias,
                     DType dtype) {
  PackedConv packed;
  packed.out_ = weight[0];
  packed.in_ = weight[1];
  packed.kernel_ = {weight[2], weight[3], weight[4]};
  packed.dtype_ = dtype;
  auto* panels = new ConvPanels(stream, weight, dtype, ConvPanels::widest_block(weight[0]));
  packed.storage_ = {panels, [](void* data) { delete static_cast<ConvPanels*>(data); }};
  packed.bytes_ = panels->bytes();
  if (bias) {
    packed.bias_ = Tensor(DType::kF32, bias.shape());
    copy(stream, bias, packed.bias_);
    packed.bytes_ += packed.bias_.view().bytes();
  }
  return packed;
}

void conv3d(Stream& stream, const TensorView& x, const PackedConv& packed, const ConvArgs& args,
            const TensorView& out) {
  static_cast<const ConvPanels*>(packed.storage_.get())->run(stream, x, packed, args, out);
}

}  // namespace

void fill_conv_simd(Ops& ops) {
  ops.conv.pack_conv = pack_conv;
  ops.conv.conv3d = conv3d;
}

}  // namespace weft::cpu
