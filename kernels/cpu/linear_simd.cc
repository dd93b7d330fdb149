// Linear with Highway alone: panels, on any machine.
#include "kernels/cpu/linear_int8.h"
#include "kernels/cpu/linear_panels.h"
#include "kernels/cpu/linear_stored.h"
#include "kernels/cpu/tables.h"
#include "kernels/ops.h"

namespace weft::cpu {

namespace {

PackedLinear pack_linear(Stream& stream, const TensorView& weight, const TensorView& bias,
                         DType dtype, WeightFormat format) {
  if (format != WeightFormat::kCompute)
    return pack_linear_8bit(stream, weight, bias, dtype, format);
  PackedLinear packed(weight, dtype);
  packed.make_storage<PanelWeights<LinearPanels>>().panels = LinearPanels(stream, weight, dtype);
  packed.set_bias(stream, bias);
  return packed;
}

void linear(Stream& stream, const TensorView& x, const PackedLinear& packed,
            LinearActivation activation, const TensorView& out) {
  if (packed.format() == WeightFormat::kFile)
    return packed.storage<StoredWeights>().with_values(
        stream, packed.dtype(), [&](const void* data) {
          LinearPanels::run(stream, data, x, packed.bias(), activation, out);
        });
  if (packed.format() != WeightFormat::kCompute)
    return linear_8bit(stream, x, packed, activation, out);
  packed.storage<PanelWeights<LinearPanels>>().panels.run(stream, x, packed.bias(), activation,
                                                          out);
}

}  // namespace

void fill_linear_simd(Ops& ops) {
  ops.linear = {.pack_linear = pack_linear,
                .pack_stored = pack_stored_as<ExpandedLayout::kPanels>,
                .linear = linear};
}

}  // namespace weft::cpu
