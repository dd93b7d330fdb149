#include "kernels/cpu/linear_panels.h"

namespace weft::cpu {

namespace {

struct Bf16Rows {
  const bf16* data;
  int64_t stride;
};

void gather(const void* context, int64_t row, int64_t rows, int64_t k, int64_t depth, float* out) {
  const auto& x = *static_cast<const Bf16Rows*>(context);
  for (int64_t r = 0; r < rows; ++r)
    widen_bf16(x.data + (row + r) * x.stride + k, depth, out + r * depth);
}

void multiply(Stream& stream, const Panels& weight, const TensorView& x, const float* bias,
              LinearActivation activation, const TensorView& out) {
  PanelGemm gemm{.weight = weight,
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

}  // namespace

LinearPanels::LinearPanels(Stream& stream, const TensorView& weight, DType dtype)
    : in_(weight[1]), out_(weight[0]) {
  data_ = Tensor(dtype, {(out_ + kBlock - 1) / kBlock, depth(in_), kBlock}, stream.device());
  pack_panels(stream, weight, dtype, kBlock, depth(in_) * kBlock, data_.view().data);
}

void LinearPanels::run(Stream& stream, const TensorView& x, const float* bias,
                       LinearActivation activation, const TensorView& out) const {
  run(stream, data(), x, bias, activation, out);
}

void LinearPanels::run(Stream& stream, const void* data, const TensorView& x, const float* bias,
                       LinearActivation activation, const TensorView& out) {
  multiply(stream,
           {.data = data,
            .dtype = x.dtype,
            .in = x[-1],
            .out = out[-1],
            .block = kBlock,
            .stride = depth(x[-1]) * kBlock},
           x, bias, activation, out);
}

void LinearPanels::run_pairs(Stream& stream, const void* data, const TensorView& x,
                             const float* bias, LinearActivation activation,
                             const TensorView& out) {
  multiply(stream,
           {.data = data,
            .dtype = DType::kBF16,
            .in = x[-1],
            .out = out[-1],
            .block = kBlock,
            .stride = (x[-1] + 31) / 32 * 32 * kBlock,
            .pairs = true},
           x, bias, activation, out);
}

}  // namespace weft::cpu
