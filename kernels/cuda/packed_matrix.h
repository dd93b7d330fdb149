#pragma once
// Weights in device memory: what PackedLinear::storage_ and the convolutions hold on CUDA.
#include "kernels/linear.h"

namespace weft::cuda {

struct PackedMatrix {
  // [out, stride] in the compute dtype, i8 or f8_e4m3; rows are whole multiples of 16 bytes with
  // zeros behind `in`. Of 8-bit numbers `out` is rounded up to a multiple of 16 with rows of zeros.
  Tensor weight;
  Tensor scales;     // [rows of weight] f32, of 8-bit numbers
  Tensor bias_bf16;  // [out] where bf16 holds every value of the bias: the library adds it then
  int64_t stride() const { return weight.view()[1]; }
  int64_t rows() const { return weight.view()[0]; }
};

inline const PackedMatrix& packed_matrix(const PackedLinear& packed) {
  return *static_cast<const PackedMatrix*>(packed.storage_.get());
}

// weight [out, ...] of up to five dimensions and any strides, the rest read row by row; on the host
// or the stream's device. It may go away when this returns; the work may not be done by then.
PackedLinear pack_matrix(Stream& stream, const TensorView& weight, const TensorView& bias,
                         DType dtype, WeightFormat format);

}  // namespace weft::cuda
