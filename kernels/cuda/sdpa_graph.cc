#include "kernels/cuda/sdpa_graph.h"

namespace weft::cuda {

void check_cudnn(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char reason[512] = "";
  cudnnGetLastErrorString(reason, sizeof(reason));
  throw CudnnRefusal{status,
                     std::string(what) + ": " + cudnnGetErrorString(status) + ": " + reason};
}

CudnnDescriptor::CudnnDescriptor(cudnnBackendDescriptorType_t type) {
  check_cudnn(cudnnBackendCreateDescriptor(type, &data_), "cudnnBackendCreateDescriptor");
}

void CudnnDescriptor::reset() {
  if (data_) cudnnBackendDestroyDescriptor(data_);
  data_ = nullptr;
}

void CudnnDescriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                          int64_t count, const void* values) {
  check_cudnn(cudnnBackendSetAttribute(data_, name, type, count, values),
              "cudnnBackendSetAttribute");
}

void CudnnDescriptor::set(cudnnBackendAttributeName_t name, const CudnnDescriptor& value) {
  const cudnnBackendDescriptor_t descriptor = value.get();
  set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &descriptor);
}

void CudnnDescriptor::finalize() {
  check_cudnn(cudnnBackendFinalize(data_), "cudnnBackendFinalize");
}

SdpaShape SdpaShape::of(const Sdpa& p) {
  return {p.queries, p.keys,   p.heads, p.kv_heads, p.size,    p.q_row,    p.q_head,
          p.k_row,   p.k_head, p.v_row, p.v_head,   p.out_row, p.out_head, p.lse != nullptr};
}

namespace {

// One batch of [heads, rows, columns]; strides in elements.
CudnnDescriptor make_tensor(SdpaTensor id, cudnnDataType_t type, int64_t heads, int64_t rows,
                            int64_t columns, int64_t head_stride, int64_t row_stride) {
  CudnnDescriptor tensor(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  const int64_t extents[] = {1, heads, rows, columns};
  const int64_t strides[] = {rows * row_stride, head_stride, row_stride, 1};
  const int64_t unique = id, alignment = 16;
  tensor.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
  tensor.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, extents);
  tensor.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides);
  tensor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &unique);
  tensor.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
  if (id == kSdpaScale) {
    const bool by_value = true;
    tensor.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
  }
  tensor.finalize();
  return tensor;
}

CudnnDescriptor make_graph(const SdpaShape& s, const SdpaTarget& target) {
  constexpr cudnnDataType_t kWord = CUDNN_DATA_BFLOAT16;
  CudnnDescriptor operation(CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC,
                make_tensor(kSdpaQ, kWord, s.heads, s.queries, s.size, s.q_head, s.q_row));
  operation.set(CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC,
                make_tensor(kSdpaK, kWord, s.kv_heads, s.keys, s.size, s.k_head, s.k_row));
  operation.set(CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC,
                make_tensor(kSdpaV, kWord, s.kv_heads, s.keys, s.size, s.v_head, s.v_row));
  operation.set(CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC,
                make_tensor(kSdpaOut, kWord, s.heads, s.queries, s.size, s.out_head, s.out_row));
  if (s.lse)
    operation.set(CUDNN_ATTR_OPERATION_SDPA_FWD_STATSDESC,
                  make_tensor(kSdpaLse, CUDNN_DATA_FLOAT, s.heads, s.queries, 1, s.queries, 1));
  operation.set(CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC,
                make_tensor(kSdpaScale, CUDNN_DATA_FLOAT, 1, 1, 1, 1, 1));
  operation.finalize();
  CudnnDescriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  if (target.handle)
    graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &target.handle);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operation);
  graph.finalize();
  return graph;
}

}  // namespace

std::vector<CudnnDescriptor> propose_sdpa(const SdpaShape& shape, const SdpaTarget& target) {
  const CudnnDescriptor graph = make_graph(shape, target);
  CudnnDescriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
  if (target.device) heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *target.device);
  heuristics.finalize();
  int64_t count = 0;
  check_cudnn(cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                       CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr),
              "heuristics");
  std::vector<CudnnDescriptor> configurations;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (int64_t i = 0; i < count; ++i) {
    configurations.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    raw.push_back(configurations.back().get());
  }
  // Engines that the device or the machine cannot run are left out here.
  check_cudnn(cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                       CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &count, raw.data()),
              "heuristics' results");
  configurations.resize(static_cast<size_t>(count));
  return configurations;
}

CudnnDescriptor make_sdpa_plan(const CudnnDescriptor& configuration, const SdpaTarget& target) {
  CudnnDescriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  if (target.handle)
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &target.handle);
  else
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *target.device);
  plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
  plan.finalize();
  return plan;
}

}  // namespace weft::cuda
