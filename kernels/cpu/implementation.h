#pragma once
// These functions name the implementation that the "cpu" table's linear, attention and convolution
// use for a call: oneDNN's name of its kernel ("brg:avx512_core"), or "panels". Tests and benches
// use them.
#include <string>

#include "kernels/attention.h"
#include "kernels/conv.h"
#include "kernels/linear.h"

namespace weft::cpu {

// `rows` are dense rows. `packed` must come from cpu_ops().
std::string linear_implementation(const Stream& stream, const PackedLinear& packed, int64_t rows,
                                  LinearActivation activation, DType out);

std::string conv_implementation(const Stream& stream, const PackedConv& packed, const TensorView& x,
                                const ConvArgs& args);

// Attention by oneDNN's GEMMs with operands in `compute` (bf16 rounds the probabilities to it),
// whichever kernels oneDNN has for them. The "cpu" table only takes this path if the kernels are
// fast and the call is large.
void attention_by_gemm(Stream& stream, const AttentionArgs& args, DType compute);
// True if the "cpu" table computes this call by oneDNN's GEMMs.
bool takes_gemm_attention(const AttentionArgs& args);

}  // namespace weft::cpu
