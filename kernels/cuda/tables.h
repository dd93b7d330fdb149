#pragma once
// These functions fill cuda_ops(): one per family and file. Every entry but the packs takes views
// of the stream's device; packs also take weights on the host.
#include "kernels/ops.h"

namespace weft::cuda {

void fill_norm(Ops& ops);
void fill_group_norm(Ops& ops);
void fill_linear(Ops& ops);
void fill_attention(Ops& ops);
void fill_merge(Ops& ops);  // the merge of attention states
void fill_rope(Ops& ops);
void fill_pointwise(Ops& ops);
void fill_row_code(Ops& ops);
void fill_conv(Ops& ops);
void fill_copy(Ops& ops);  // also upsample_nearest2, which is a copy

}  // namespace weft::cuda
