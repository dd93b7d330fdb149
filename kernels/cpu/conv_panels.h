#pragma once
// ConvPanels holds one convolution's weights as panels and multiplies gathered windows by them: the
// convolution for any machine.
#include "kernels/conv.h"
#include "kernels/cpu/panel_gemm.h"

namespace weft::cpu {

class ConvPanels {
 public:
  ConvPanels() = default;
  // weight [Cout, Cin, kt, kh, kw] has any float dtype and alignment; it is stored in `dtype`, f32
  // or bf16, as [Cout / block][kt kh kw Cin][block].
  ConvPanels(Stream& stream, const TensorView& weight, DType dtype, int64_t block);

  // Returns the block (16, 32, 48 or 64) that wastes the fewest columns of the last panel; among
  // equals, the widest.
  static int64_t widest_block(int64_t out);

  explicit operator bool() const { return static_cast<bool>(data_); }
  const void* data() const { return data_.view().data; }
  Tensor& buffer() { return data_; }

  // out = x * weight + bias, as `conv3d`; `packed` gives the kernel's extents and the bias.
  void run(Stream& stream, const TensorView& x, const PackedConv& packed, const ConvArgs& args,
           const TensorView& out) const;

 private:
  Tensor data_;
};

}  // namespace weft::cpu
