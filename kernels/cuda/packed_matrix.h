#pragma once
// A PackedMatrix holds the weights of a PackedLinear in device memory.
#include "kernels/linear.h"

namespace weft::cuda {

struct PackedMatrix : PackedStorage {
  // weight is [out, stride] in the compute dtype, i8 or f8_e4m3. Rows are whole multiples of 16
  // bytes with zeros after `in`. In 8-bit formats `out` is rounded up to a multiple of 16 with rows
  // of zeros.
  Tensor weight;
  Tensor scales;     // [rows of weight] f32, in 8-bit formats
  Tensor bias_bf16;  // [out], the values of the bias where they are bf16; the library adds it
  int64_t stride() const { return weight.view()[1]; }
  int64_t rows() const { return weight.view()[0]; }
  void for_buffers(const BufferVisitor& visit) override {
    visit(weight);
    visit(scales);
    visit(bias_bf16);
  }
};

inline const PackedMatrix& packed_matrix(const PackedLinear& packed) {
  return packed.storage<PackedMatrix>();
}

// Packs weight [out, ...] of up to five dimensions and any strides as a matrix [out, all others].
// It lies on the host or the stream's device and may be freed when this returns, although the
// device may not have finished.
PackedLinear pack_matrix(Stream& stream, const TensorView& weight, const TensorView& bias,
                         DType dtype, WeightFormat format);
// Throws Error(kUsage): no kernel expands stored matrices on a device.
PackedLinear pack_stored(Stream& stream, StoredMatrix matrix, const TensorView& bias, DType dtype,
                         std::shared_ptr<SharedScratch> scratch);

}  // namespace weft::cuda
