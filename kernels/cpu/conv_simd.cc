// Convolution with Highway alone: panels, on any machine.
#include "kernels/cpu/conv_panels.h"
#include "kernels/cpu/tables.h"
#include "kernels/ops.h"

namespace weft::cpu {

namespace {

PackedConv pack_conv(Stream& stream, const TensorView& weight, const TensorView& bias,
                     DType dtype) {
  PackedConv packed(weight, dtype);
  packed.make_storage<PanelWeights<ConvPanels>>().panels =
      ConvPanels(stream, weight, dtype, ConvPanels::widest_block(weight[0]));
  packed.set_bias(stream, bias);
  return packed;
}

void conv3d(Stream& stream, const TensorView& x, const PackedConv& packed, const ConvArgs& args,
            const TensorView& out) {
  packed.storage<PanelWeights<ConvPanels>>().panels.run(stream, x, packed, args, out);
}

}  // namespace

void fill_conv_simd(Ops& ops) {
  ops.conv.pack_conv = pack_conv;
  ops.conv.conv3d = conv3d;
}

}  // namespace weft::cpu
