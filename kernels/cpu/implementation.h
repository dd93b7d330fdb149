#pragma once
// Which implementation the "cpu" table's linear and convolution take for a call: oneDNN's name of
// its kernel ("brg:avx512_core"), or "panels". For tests and benches.
#include <string>

#include "kernels/conv.h"
#include "kernels/linear.h"

namespace weft::cpu {

// Dense rows. `packed` must come from cpu_ops().
std::string linear_implementation(const Stream& stream, const PackedLinear& packed, int64_t rows,
                                  LinearActivation activation, DType out);

std::string conv_implementation(const Stream& stream, const PackedConv& packed, const TensorView& x,
                                const ConvArgs& args);

}  // namespace weft::cpu
