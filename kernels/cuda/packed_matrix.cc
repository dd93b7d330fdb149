#include "kernels/cuda/packed_matrix.h"

#include <algorithm>

#include "kernels/copy.h"
#include "kernels/cuda/quantize.h"
#include "kernels/device_plan.h"
#include "kernels/ops.h"
#include "kernels/transfer.h"

namespace weft::cuda {

namespace {

// A view of x's shape whose rows (the first dimension) are `stride` elements apart.
TensorView padded_rows(const TensorView& x, const TensorView& rows) {
  TensorView view(rows.data, rows.dtype, x.shape(), rows.device);
  view.stride[0] = rows.stride[0];
  return view;
}

// Quantizes the weights. Rows are copied to the device in their dtype, or as f32 if the kernel does
// not read it.
void quantize_weights(Stream& stream, const TensorView& weight, WeightFormat format,
                      PackedMatrix& matrix) {
  const bool read = weight.dtype == DType::kBF16 || weight.dtype == DType::kF32;
  const DType dtype = read ? weight.dtype : DType::kF32;
  const int64_t in = weight[1], stride = matrix.stride();
  const int64_t together = packing_rows(weight[0], in, dtype);
  const Tensor rows(dtype, {together, in}, stream.device()),
      most(DType::kI32, {1}, stream.device());
  const auto for_parts = [&](auto&& body) {
    for (int64_t row = 0; row < weight[0]; row += together) {
      const int64_t count = std::min(together, weight[0] - row);
      const TensorView part = rows.view().slice(0, 0, count);
      copy(stream, weight.slice(0, row, count), part);
      body(part, row);
    }
  };
  uint32_t* largest = nullptr;
  if (format == WeightFormat::kFp8Tensor) {
    largest = static_cast<uint32_t*>(most.view().data);
    fill_zero(stream, most);
    for_parts([&](const TensorView& part, int64_t) { measure_rows(stream, part, largest); });
  }
  const QuantizedType kind = is_fp8(format) ? QuantizedType::kE4m3 : QuantizedType::kInt8;
  for_parts([&](const TensorView& part, int64_t row) {
    char* numbers = static_cast<char*>(matrix.weight.view().data) + row * stride;
    quantize_rows(stream, part, {kind, numbers, stride, matrix.scales.as<float>() + row}, largest);
  });
  stream.sync();  // `rows` is freed below
}

}  // namespace

PackedLinear pack_matrix(Stream& stream, const TensorView& weight, const TensorView& bias,
                         DType dtype, WeightFormat format) {
  PackedLinear packed(weight, dtype, format);
  auto& matrix = packed.make_storage<PackedMatrix>();
  const auto [rows, stride] = packed_extents(packed.out(), packed.in(), dtype, format);
  const DType kept = format == WeightFormat::kCompute ? dtype
                     : format == WeightFormat::kInt8  ? DType::kI8
                                                      : DType::kF8E4M3;
  matrix.weight = Tensor(kept, {rows, stride}, stream.device());
  if (format != WeightFormat::kCompute) {
    matrix.scales = Tensor(DType::kF32, {rows}, stream.device());
    quantize_weights(stream, weight, format, matrix);
  } else {
    copy(stream, weight, padded_rows(weight, matrix.weight));
  }
  packed.set_bias(stream, bias);
  if (bias && dtype == DType::kBF16) {
    matrix.bias_bf16 = Tensor(DType::kBF16, bias.shape(), stream.device());
    copy(stream, bias, matrix.bias_bf16);
  }
  return packed;
}

PackedLinear pack_stored(Stream& stream, StoredMatrix, const TensorView&, DType,
                         std::shared_ptr<SharedScratch>) {
  throw Error(ErrorKind::kUsage, "weights stay in their file's format on a cpu only, not on " +
                                     to_string(stream.device()));
}

}  // namespace weft::cuda
