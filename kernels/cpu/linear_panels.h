#pragma once
// LinearPanels holds one weight matrix as panels and multiplies by it: the linear layer for any
// machine.
#include "kernels/cpu/panel_gemm.h"
#include "kernels/tensor.h"

namespace weft::cpu {

class LinearPanels {
 public:
  static constexpr int64_t kBlock = 64;  // outputs of a panel
  // The values that a panel has room for, of each of its outputs.
  static constexpr int64_t depth(int64_t in) { return (in + 15) / 16 * 16; }

  LinearPanels() = default;
  // weight [out, in] has any float dtype and alignment; it is stored in `dtype`, f32 or bf16.
  LinearPanels(Stream& stream, const TensorView& weight, DType dtype);

  explicit operator bool() const { return static_cast<bool>(data_); }
  const void* data() const { return data_.view().data; }
  Tensor& buffer() { return data_; }

  // out = act(x weight^T + bias), as `linear`; bias [out] f32 or null. Rows may have any stride.
  void run(Stream& stream, const TensorView& x, const float* bias, LinearActivation activation,
           const TensorView& out) const;
  // The same with the panels at `data` in place of its own.
  static void run(Stream& stream, const void* data, const TensorView& x, const float* bias,
                  LinearActivation activation, const TensorView& out);
  // The same for up to 16 bf16 rows and panels of pairs, whose depth is `in` rounded up to 32.
  static void run_pairs(Stream& stream, const void* data, const TensorView& x, const float* bias,
                        LinearActivation activation, const TensorView& out);

 private:
  Tensor data_;  // [panels, depth, 64]
  int64_t in_ = 0, out_ = 0;
};

}  // namespace weft::cpu
