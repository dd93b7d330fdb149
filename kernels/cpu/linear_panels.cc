#include "kernels/cpu/linear_panels.h"

namespace weft::cpu {

namespace {

constexpr int64_t kBlock = 64, kPad = 16;

struct Bf16Rows {
  const bf16* data;
  int64_t stride;
};

void gather(const void* context, int64_t row, int64_t rows, int64_t k, int64_t depth, float* out) {
  const auto& x = *static_cast<const Bf16Rows*>(context);
  for (int64_t r = 0; r < rows; ++r)
    widen_bf16(x.data + (row + r) * x.stride + k, depth, out + r * depth);
}

}  // namespace

LinearPanels::LinearPanels(Stream& stream, const TensorView& weight, DType dtype)
    : in_(weight[1]), out_(weight[0]) {
  const int64_t depth = (in_ + kPad - 1) / kPad * kPad;
  data_ = Tensor(dtype, {(out_ + kBlock - 1) / kBlock, depth, kBlock}, stream.device());
  pack_panels(stream, weight, dtype, kBlock, depth * kBlock, data_.view().data);
}

void LinearPanels::run(Stream& stream, const TensorView& x, const float* bias,
                       LinearActivation activation, const TensorView& out) const {
  const TensorView& data = data_.view();
  PanelGemm gemm{.weight = {.data = data.data,
                            .dtype = data.dtype,
                            .in = in_,
                            .out = out_,
                            .block = kBlock,
                            .stride = data[1] * kBlock},
                 .rows = x.rows(),
                 .bias = bias,
                 .activation = activation,
                 .out = out.data,
                 .out_dtype = out.dtype,
                 .out_stride = out.row_stride()};
  Bf16Rows rows{};
  if (x.dtype == DType::kF32) {
    gemm.left = x.as<float>();
    gemm.left_stride = x.row_stride();
  } else {
    rows = {x.as<bf16>(), x.row_stride()};
    gemm.gather = gather;
    gemm.context = &rows;
  }
  panel_gemm(stream, gemm);
}

}  // namespace weft::cpu
