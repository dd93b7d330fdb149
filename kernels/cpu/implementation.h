#pragma once
// Which implementation the "cpu" table's linear, attention and convolution take for a call:
// oneDNN's name of its kernel ("brg:avx512_core"), or "panels". For tests and benches.
#include <string>

#include "kernels/attention.h"
#include "kernels/conv.h"
#include "kernels/linear.h"

namespace weft::cpu {

// Dense rows. `packed` must come from cpu_ops().
std::string linear_implementation(const Stream& stream, const PackedLinear& packed, int64_t rows,
                                  LinearActivation activation, DType out);

std::string conv_implementation(const Stream& stream, const PackedConv& packed, const TensorView& x,
                                const ConvArgs& args);

// Attention through products of oneDNN, whatever its kernels for them are: operands in `compute`
// (bf16 rounds the probabilities to it). The table takes it where they are fast and the call is
// large.
void attention_by_gemm(Stream& stream, const AttentionArgs& args, DType compute);
// Whether the "cpu" table takes the products for this call.
bool takes_gemm_attention(const AttentionArgs& args);

}  // namespace weft::cpu
