#pragma once
// What cuda_ops() is filled from: one function per family and file. Every entry but the packs takes
// views of the stream's device; packs take the weights where they lie, on the host too.
#include "kernels/ops.h"

namespace weft::cuda {

void fill_norm(Ops& ops);
void fill_linear(Ops& ops);
void fill_attention(Ops& ops);
void fill_merge(Ops& ops);  // the merge of attention states
void fill_rope(Ops& ops);
void fill_pointwise(Ops& ops);
void fill_conv(Ops& ops);
void fill_copy(Ops& ops);  // and the doubling of pixels, a copy too

}  // namespace weft::cuda
