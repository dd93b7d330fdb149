#pragma once
// Compares matrices by a number.
#include "kernels/cuda/gemm.h"

namespace weft::cuda {

// Writes to *sum, in device memory, a hash of the bits of g.out and of their places. Matrices of
// the same shape with other bits have another hash, but for one pair in 2^64.
void sum_bits(const Stream& stream, const Gemm& g, uint64_t* sum);

}  // namespace weft::cuda
