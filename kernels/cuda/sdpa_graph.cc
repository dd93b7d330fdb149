#include "kernels/cuda/sdpa_graph.h"

#include <algorithm>

namespace weft::cuda {

SdpaShape SdpaShape::of(const Sdpa& p) {
  return {p.queries, p.keys,   p.heads, p.kv_heads, p.size,    p.q_row,    p.q_head,
          p.k_row,   p.k_head, p.v_row, p.v_head,   p.out_row, p.out_head, p.lse != nullptr};
}

namespace {

// One batch of [heads, rows, columns]; strides are in elements.
struct Matrices {
  int64_t heads, rows, columns, head_stride, row_stride;
};

CudnnDescriptor make_tensor(SdpaTensor id, cudnnDataType_t type, const Matrices& m) {
  return make_cudnn_tensor({.id = id,
                            .type = type,
                            .extents = {1, m.heads, m.rows, m.columns},
                            .strides = {std::max(m.rows * m.row_stride, m.heads * m.head_stride),
                                        m.head_stride, m.row_stride, 1},
                            .by_value = id == kSdpaScale});
}

CudnnDescriptor make_graph(const SdpaShape& s, const CudnnTarget& target) {
  constexpr cudnnDataType_t kElement = CUDNN_DATA_BFLOAT16;
  CudnnDescriptor operation(CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC,
                make_tensor(kSdpaQ, kElement, {s.heads, s.queries, s.size, s.q_head, s.q_row}));
  operation.set(CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC,
                make_tensor(kSdpaK, kElement, {s.kv_heads, s.keys, s.size, s.k_head, s.k_row}));
  operation.set(CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC,
                make_tensor(kSdpaV, kElement, {s.kv_heads, s.keys, s.size, s.v_head, s.v_row}));
  operation.set(
      CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC,
      make_tensor(kSdpaOut, kElement, {s.heads, s.queries, s.size, s.out_head, s.out_row}));
  if (s.lse)
    operation.set(CUDNN_ATTR_OPERATION_SDPA_FWD_STATSDESC,
                  make_tensor(kSdpaLse, CUDNN_DATA_FLOAT, {s.heads, s.queries, 1, s.queries, 1}));
  operation.set(CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC,
                make_tensor(kSdpaScale, CUDNN_DATA_FLOAT, {1, 1, 1, 1, 1}));
  operation.finalize();
  return make_cudnn_graph({&operation, 1}, target);
}

}  // namespace

std::vector<CudnnDescriptor> propose_sdpa(const SdpaShape& shape, const CudnnTarget& target) {
  return propose_cudnn(make_graph(shape, target), CUDNN_HEUR_MODE_A, target);
}

}  // namespace weft::cuda
