// Rows coded in 8 bits, one block per row. They are compiled without contraction to fused
// multiply-add, so that they have the bits of the other tables.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tables.h"
#include "kernels/int8_row.h"
#include "kernels/row_code.h"

namespace weft::cuda {

namespace {

constexpr int kThreads = 256;

// The rows of x, or of out, and of their base (null: zeros) and code; strides in elements.
template <class T>
struct CodedRows {
  T* x;
  const T* base;
  int8_t* code;
  int64_t count, x_stride, base_stride, code_stride;

  __device__ void to_row(int64_t row) {
    x += row * x_stride;
    if (base) base += row * base_stride;
    code += row * code_stride;
  }
};

template <class T>
CodedRows<T> coded_rows(const TensorView& x, const TensorView& base, const TensorView& code) {
  return {x.as<T>(),
          base ? base.as<T>() : nullptr,
          static_cast<int8_t*>(code.data),
          x[-1],
          x.row_stride(),
          base ? base.row_stride() : 0,
          code.row_stride()};
}

template <class T>
__device__ __forceinline__ float difference(const CodedRows<T>& rows, int64_t i) {
  return rows.base ? to_float(rows.x[i]) - to_float(rows.base[i]) : to_float(rows.x[i]);
}

template <class Row, class T>
__global__ void __launch_bounds__(kThreads) encode_kernel(CodedRows<T> rows) {
  rows.to_row(blockIdx.x);
  __shared__ uint32_t most;
  if (threadIdx.x == 0) most = 0;
  __syncthreads();
  uint32_t own = 0;
  for (int64_t i = threadIdx.x; i < rows.count; i += kThreads) {
    const uint32_t bits = magnitude_bits(difference(rows, i));
    own = bits > own ? bits : own;
  }
  atomicMax(&most, own);
  __syncthreads();
  const Row row(most);
  for (int64_t i = threadIdx.x; i < rows.count; i += kThreads)
    rows.code[i] = Row::code(difference(rows, i) * row.unit());
  if (threadIdx.x == 0) rows.code[rows.count] = row.exponent;
}

template <class Row, class T>
__global__ void __launch_bounds__(kThreads) decode_kernel(CodedRows<T> rows) {
  rows.to_row(blockIdx.x);
  const float scale = Row::scale(rows.code[rows.count]);
  for (int64_t i = threadIdx.x; i < rows.count; i += kThreads) {
    const float value = Row::number(rows.code[i]) * scale;
    rows.x[i] = from_float<T>(rows.base ? to_float(rows.base[i]) + value : value);
  }
}

void encode_rows(Stream& stream, const TensorView& x, const TensorView& base,
                 const TensorView& code, RowCode kind) {
  visit_dtype(x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const auto kernel =
        kind == RowCode::kInt8 ? encode_kernel<Int8Row, T> : encode_kernel<E4m3Row, T>;
    launch(stream, {static_cast<unsigned>(x.rows()), kThreads}, kernel,
           coded_rows<T>(x, base, code));
  });
}

void decode_rows(Stream& stream, const TensorView& code, const TensorView& base,
                 const TensorView& out, RowCode kind) {
  visit_dtype(out.dtype, [&](auto tag) {
    using T = decltype(tag);
    const auto kernel =
        kind == RowCode::kInt8 ? decode_kernel<Int8Row, T> : decode_kernel<E4m3Row, T>;
    launch(stream, {static_cast<unsigned>(out.rows()), kThreads}, kernel,
           coded_rows<T>(out, base, code));
  });
}

}  // namespace

void fill_row_code(Ops& ops) {
  ops.row_code = {.encode_rows = encode_rows, .decode_rows = decode_rows};
}

}  // namespace weft::cuda
