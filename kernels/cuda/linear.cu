// Linear layers: GEMVs use our own kernels, the rest uses the library, which adds the bias, in the
// type of the results. For SiLU it computes f32 sums, a block of rows at a time, and a kernel of
// ours finishes them. That moves 8 more bytes per result through memory than a fused epilogue,
// which writes 2.
#include <algorithm>

#include "kernels/copy.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/gemv.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/packed_matrix.h"
#include "kernels/cuda/quantize.h"
#include "kernels/cuda/tables.h"
#include "kernels/device_plan.h"
#include "kernels/pointwise.h"

namespace weft::cuda {

namespace {

// The arguments of one call, for all rows or for a block of them.
struct Call {
  Stream& stream;
  const PackedLinear& packed;
  LinearActivation activation;
  int64_t m, n, k;
  const char* x;
  DType x_dtype;
  int64_t x_stride;
  char* out;
  DType out_dtype;
  int64_t out_stride;

  const PackedMatrix& matrix() const { return packed_matrix(packed); }
  const float* bias() const { return packed.bias(); }
  Call rows(int64_t first, int64_t count) const {
    Call part = *this;
    part.m = count;
    part.x += first * x_stride * static_cast<int64_t>(size_of(x_dtype));
    part.out += first * out_stride * static_cast<int64_t>(size_of(out_dtype));
    return part;
  }
  TensorView x_view() const {
    TensorView view(const_cast<char*>(x), x_dtype, {m, k}, stream.device());
    view.stride[0] = x_stride;
    return view;
  }
  TensorView out_view() const {
    TensorView view(out, out_dtype, {m, n}, stream.device());
    view.stride[0] = out_stride;
    return view;
  }
  GemmMatrix x_matrix() const { return {const_cast<char*>(x), x_dtype, x_stride}; }
  GemmMatrix out_matrix() const { return {out, out_dtype, out_stride}; }
  GemmMatrix w_matrix() const {
    return {matrix().weight.view().data, matrix().weight.view().dtype, matrix().stride()};
  }
  // The bias in the type of the results, or null.
  const void* library_bias() const {
    return out_dtype == DType::kF32 ? bias() : matrix().bias_bf16.view().data;
  }
  // Arguments that turn sums, or results without activation, into results.
  FinishRows finish(const void* sums, int64_t sums_stride) const {
    return {.rows = m,
            .columns = n,
            .sums = sums,
            .sums_stride = sums_stride,
            .bias = bias(),
            .activation = activation,
            .out = out,
            .out_dtype = out_dtype,
            .out_stride = out_stride};
  }
};

// Calls run(block of rows), with as many rows at a time as take linear_block_bytes of scratch.
template <class Run>
void for_blocks(const Call& call, int64_t row_bytes, Run&& run) {
  const int64_t blocks = row_blocks(call.m, row_bytes).count;
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t begin = call.m * i / blocks;
    run(call.rows(begin, call.m * (i + 1) / blocks - begin));
  }
}

void gemv_bf16(const Call& call) {
  gemv(call.stream, {.m = call.m,
                     .n = call.n,
                     .k = call.k,
                     .x = reinterpret_cast<const bf16*>(call.x),
                     .x_stride = call.x_stride,
                     .w = call.matrix().weight.view().data,
                     .w_stride = call.matrix().stride(),
                     .bias = call.bias(),
                     .activation = call.activation,
                     .out = call.out,
                     .out_dtype = call.out_dtype,
                     .out_stride = call.out_stride});
}

// Computes the GEMM with its bias to f32 results, then applies the activation in place. Returns
// false if the library refuses.
bool library_wide(const Call& call) {
  if (!gemm(call.stream, {.m = call.m,
                          .n = call.n,
                          .k = call.k,
                          .x = call.x_matrix(),
                          .w = call.w_matrix(),
                          .out = call.out_matrix(),
                          .bias = call.bias()}))
    return false;
  if (call.activation == LinearActivation::kNone) return true;
  FinishRows finish = call.finish(call.out, call.out_stride);
  finish.bias = nullptr;
  finish_rows(call.stream, finish);
  return true;
}

// Our own kernels: f32 results of few rows, or of shapes that the library refuses.
void gemv_wide(const Call& call) {
  if (call.x_dtype == DType::kBF16) return gemv_bf16(call);
  gemv_dot(call.stream, {.m = call.m,
                         .n = call.n,
                         .k = call.k,
                         .x = call.x,
                         .x_stride = call.x_stride,
                         .w = call.matrix().weight.view().data,
                         .w_stride = call.matrix().stride(),
                         .sums = call.out,
                         .sums_stride = call.out_stride});
  if (call.bias() || call.activation != LinearActivation::kNone)
    finish_rows(call.stream, call.finish(call.out, call.out_stride));
}

void linear_f32(const Call& call) {
  if (call.m > kGemvDotRows && library_wide(call)) return;
  gemv_wide(call);
}

void linear_bf16(const Call& call) {
  if (call.m <= kGemvRows) return gemv_bf16(call);
  if (call.out_dtype == DType::kF32) {
    if (!library_wide(call)) gemv_wide(call);
    return;
  }
  Gemm product{.m = call.m,
               .n = call.n,
               .k = call.k,
               .x = call.x_matrix(),
               .w = call.w_matrix(),
               .out = call.out_matrix(),
               .bias = call.library_bias()};
  product.gelu = call.activation == LinearActivation::kGeluTanh;
  if (call.activation != LinearActivation::kSilu) {
    if (gemm(call.stream, product)) return;
    if (!product.gelu) return gemv_bf16(call);
  }
  const int64_t stride = (call.n + 3) / 4 * 4;
  product.bias = nullptr;
  product.gelu = false;
  for_blocks(call, stride * 4, [&](const Call& part) {
    const LinearPlaces places = places_of_sums(part.m, stride);
    product.m = part.m;
    product.x = part.x_matrix();
    product.out = {cuda_queue(call.stream).scratch(places.used), DType::kF32, stride};
    product.scratch_used = places.used;
    if (!gemm(call.stream, product)) return gemv_bf16(part);
    finish_rows(call.stream, part.finish(product.out.data, stride));
  });
}

void linear_int8(const Call& call) {
  const PackedMatrix& matrix = call.matrix();
  const int64_t stride = matrix.stride(), columns = matrix.rows();
  for_blocks(call, stride + columns * 4, [&](const Call& part) {
    const LinearPlaces places = places_of_quantized(part.m, stride, columns);
    char* scratch = static_cast<char*>(cuda_queue(call.stream).scratch(places.used));
    auto* scales = reinterpret_cast<float*>(scratch + places.scales);
    char *numbers = scratch + places.quantized, *sums = scratch + places.sums;
    quantize_rows(call.stream, part.x_view(), {QuantizedType::kInt8, numbers, stride, scales});
    const bool done = gemm(call.stream, {.m = part.m,
                                         .n = columns,
                                         .k = stride,
                                         .x = {numbers, DType::kI8, stride},
                                         .w = call.w_matrix(),
                                         .out = {sums, DType::kI32, columns},
                                         .scratch_used = places.used});
    if (!done)
      gemv_dot(call.stream, {.m = part.m,
                             .n = call.n,
                             .k = call.k,
                             .dtype = DType::kI8,
                             .x = numbers,
                             .x_stride = stride,
                             .w = matrix.weight.view().data,
                             .w_stride = stride,
                             .sums = sums,
                             .sums_stride = columns});
    FinishRows finish = part.finish(sums, columns);
    finish.whole = true;
    finish.x_scales = scales;
    finish.w_scales = matrix.scales.as<float>();
    finish_rows(call.stream, finish);
  });
}

// A queue keeps the bits of the largest magnitude of all of x, for every block of rows.
struct LargestOfX {
  explicit LargestOfX(CudaQueue& queue)
      : bits(DType::kI32, {1}, {Device::Kind::kCuda, static_cast<int8_t>(queue.index())}) {}
  Tensor bits;
};

// Null in formats with one scale per row.
uint32_t* largest_of_x(const Call& call) {
  if (call.packed.format() != WeightFormat::kFp8Tensor) return nullptr;
  return static_cast<uint32_t*>(cuda_queue(call.stream).part<LargestOfX>().bits.view().data);
}

// Quantizes x into scratch and returns its scales, also in scratch.
float* quantize_e4m3(const Call& call, QuantizedType kind, char* scratch,
                     const LinearPlaces& places) {
  auto* scales = reinterpret_cast<float*>(scratch + places.scales);
  quantize_rows(call.stream, call.x_view(),
                {kind, scratch + places.quantized, call.matrix().stride(), scales},
                largest_of_x(call));
  return scales;
}

// GEMV with e4m3 weights, for few rows or for as many as the library refuses; the quantized x is
// widened to bf16.
void gemv_fp8(const Call& call) {
  const int64_t stride = call.matrix().stride();
  const LinearPlaces places = places_of_gemv(call.m, stride);
  char* scratch = static_cast<char*>(cuda_queue(call.stream).scratch(places.used));
  const float* scales = quantize_e4m3(call, QuantizedType::kE4m3AsBf16, scratch, places);
  gemv(call.stream, {.m = call.m,
                     .n = call.n,
                     .k = call.k,
                     .x = reinterpret_cast<const bf16*>(scratch + places.quantized),
                     .x_stride = stride,
                     .w = call.matrix().weight.view().data,
                     .w_dtype = DType::kF8E4M3,
                     .w_stride = stride,
                     .x_scales = scales,
                     .w_scales = call.matrix().scales.as<float>(),
                     .bias = call.bias(),
                     .activation = call.activation,
                     .out = call.out,
                     .out_dtype = call.out_dtype,
                     .out_stride = call.out_stride});
}

// A block of rows in e4m3: the library applies scales and bias if it can; else it computes plain
// sums, which are finished here. Returns false if the library has no e4m3 GEMM.
bool library_fp8(const Call& call) {
  const PackedMatrix& matrix = call.matrix();
  const int64_t stride = matrix.stride(), columns = matrix.rows();
  const LinearPlaces places = places_of_quantized(call.m, stride, columns);
  char* scratch = static_cast<char*>(cuda_queue(call.stream).scratch(places.used));
  const float* scales = quantize_e4m3(call, QuantizedType::kE4m3, scratch, places);
  char* sums = scratch + places.sums;
  Gemm product{.m = call.m,
               .n = call.n,
               .k = stride,
               .x = {scratch + places.quantized, DType::kF8E4M3, stride},
               .w = call.w_matrix(),
               .out = call.out_matrix(),
               .bias = call.library_bias(),
               .x_scales = scales,
               .w_scales = matrix.scales.as<float>(),
               .one_scale = call.packed.format() == WeightFormat::kFp8Tensor,
               .scratch_used = places.used};
  const bool narrow = call.out_dtype == DType::kBF16;
  product.gelu = product.one_scale && narrow && call.activation == LinearActivation::kGeluTanh;
  if ((product.gelu || call.activation == LinearActivation::kNone) &&
      (!call.packed.has_bias() || narrow) && gemm(call.stream, product))
    return true;
  product.n = columns;
  product.out = {sums, DType::kF32, columns};
  product.bias = nullptr;
  product.x_scales = product.w_scales = nullptr;
  product.one_scale = product.gelu = false;
  if (!gemm(call.stream, product)) return false;
  FinishRows finish = call.finish(sums, columns);
  finish.x_scales = scales;
  finish.w_scales = matrix.scales.as<float>();
  finish_rows(call.stream, finish);
  return true;
}

// Widens both e4m3 operands to bf16, which holds them exactly: for devices whose tensor cores do
// not multiply e4m3.
bool library_fp8_as_bf16(const Call& call) {
  const PackedMatrix& matrix = call.matrix();
  const int64_t stride = matrix.stride(), columns = matrix.rows();
  const LinearPlaces places = places_of_widened(call.m, stride, columns);
  char* scratch = static_cast<char*>(cuda_queue(call.stream).scratch(places.used));
  widen_e4m3(call.stream, matrix.weight.view().data, columns * stride,
             reinterpret_cast<bf16*>(scratch + places.weight));
  const float* scales = quantize_e4m3(call, QuantizedType::kE4m3AsBf16, scratch, places);
  if (!gemm(call.stream, {.m = call.m,
                          .n = columns,
                          .k = stride,
                          .x = {scratch + places.quantized, DType::kBF16, stride},
                          .w = {scratch + places.weight, DType::kBF16, stride},
                          .out = {scratch + places.sums, DType::kF32, columns},
                          .scratch_used = places.used}))
    return false;
  FinishRows finish = call.finish(scratch + places.sums, columns);
  finish.x_scales = scales;
  finish.w_scales = matrix.scales.as<float>();
  finish_rows(call.stream, finish);
  return true;
}

void linear_fp8(const Call& call) {
  const PackedMatrix& matrix = call.matrix();
  if (uint32_t* largest = largest_of_x(call)) {
    fill_zero(call.stream, TensorView(largest, DType::kI32, {1}, call.stream.device()));
    measure_rows(call.stream, call.x_view(), largest);
  }
  for_blocks(call, 2 * matrix.stride() + matrix.rows() * 4, [&](const Call& part) {
    if (part.m <= kGemvRows || (!library_fp8(part) && !library_fp8_as_bf16(part))) gemv_fp8(part);
  });
}

Call make_call(Stream& stream, const TensorView& x, const PackedLinear& packed,
               LinearActivation activation, const TensorView& out) {
  return {.stream = stream,
          .packed = packed,
          .activation = activation,
          .m = x.rows(),
          .n = packed.out(),
          .k = packed.in(),
          .x = static_cast<const char*>(x.data),
          .x_dtype = x.dtype,
          .x_stride = x.row_stride(),
          .out = static_cast<char*>(out.data),
          .out_dtype = out.dtype,
          .out_stride = out.row_stride()};
}

void linear(Stream& stream, const TensorView& x, const PackedLinear& packed,
            LinearActivation activation, const TensorView& out) {
  const Call call = make_call(stream, x, packed, activation, out);
  if (packed.format() == WeightFormat::kInt8) return linear_int8(call);
  if (is_fp8(packed.format())) return linear_fp8(call);
  if (x.dtype == DType::kF32) return linear_f32(call);
  linear_bf16(call);
}

// The library adds, or else our kernels compute the product in scratch.
void linear_add(Stream& stream, const TensorView& x, const PackedLinear& packed,
                const TensorView& sum) {
  const Call call = make_call(stream, x, packed, LinearActivation::kNone, sum);
  if (gemm(stream, {.m = call.m,
                    .n = call.n,
                    .k = call.k,
                    .x = call.x_matrix(),
                    .w = call.w_matrix(),
                    .out = call.out_matrix(),
                    .add = true,
                    .bias = call.bias()}))
    return;
  for_blocks(call, call.n * 4, [&](const Call& part) {
    const LinearPlaces places = places_of_sums(part.m, part.n);
    Call product = part;
    product.out = static_cast<char*>(cuda_queue(stream).scratch(places.used));
    product.out_stride = part.n;
    gemv_wide(product);
    add(stream, part.out_view(), product.out_view(), part.out_view());
  });
}

}  // namespace

void fill_linear(Ops& ops) {
  ops.linear = {.pack_linear = pack_matrix, .pack_stored = pack_stored, .linear = linear};
  ops.fused.linear_add = linear_add;
}

}  // namespace weft::cuda
