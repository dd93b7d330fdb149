#pragma once
// LinearPanels holds one weight matrix as panels and multiplies by it: the linear layer for any
// machine.
#include "kernels/cpu/panel_gemm.h"
#include "kernels/tensor.h"

namespace weft::cpu {

class LinearPanels {
 public:
  LinearPanels() = default;
  // weight [out, in] has any float dtype and alignment; it is stored in `dtype`, f32 or bf16.
  LinearPanels(Stream& stream, const TensorView& weight, DType dtype);

  explicit operator bool() const { return static_cast<bool>(data_); }
  const void* data() const { return data_.view().data; }
  Tensor& buffer() { return data_; }

  // out = act(x weight^T + bias), as `linear`; bias [out] f32 or null. Rows may have any stride.
  void run(Stream& stream, const TensorView& x, const float* bias, LinearActivation activation,
           const TensorView& out) const;

 private:
  Tensor data_;  // [panels, in rounded up to 16, 64]
  int64_t in_ = 0, out_ = 0;
};

}  // namespace weft::cpu
