#pragma once
// NcclApi: the calls of NCCL and CUDA that the NCCL transport makes, as pointers, so that a stub
// can stand in for a machine with GPUs. Included only where CUDA is built.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include "parallel/transport/nccl.h"

namespace weft {

struct NcclApi {
  decltype(&ncclGetUniqueId) get_unique_id = &ncclGetUniqueId;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config = &ncclCommInitRankConfig;
  decltype(&ncclCommGetAsyncError) comm_get_async_error = &ncclCommGetAsyncError;
  decltype(&ncclCommFinalize) comm_finalize = &ncclCommFinalize;
  decltype(&ncclCommDestroy) comm_destroy = &ncclCommDestroy;
  decltype(&ncclCommAbort) comm_abort = &ncclCommAbort;
  decltype(&ncclGetErrorString) error_string = &ncclGetErrorString;
  decltype(&ncclGetLastError) last_error = &ncclGetLastError;
  decltype(&ncclGroupStart) group_start = &ncclGroupStart;
  decltype(&ncclGroupEnd) group_end = &ncclGroupEnd;
  decltype(&ncclSend) send = &ncclSend;
  decltype(&ncclRecv) recv = &ncclRecv;

  cudaError_t (*set_device)(int) = &cudaSetDevice;
  const char* (*cuda_error_string)(cudaError_t) = &cudaGetErrorString;
  cudaError_t (*pointer_get_attributes)(cudaPointerAttributes*,
                                        const void*) = &cudaPointerGetAttributes;
  cudaError_t (*stream_create)(cudaStream_t*, unsigned) = &cudaStreamCreateWithFlags;
  cudaError_t (*stream_destroy)(cudaStream_t) = &cudaStreamDestroy;
  cudaError_t (*stream_wait_event)(cudaStream_t, cudaEvent_t, unsigned) = &cudaStreamWaitEvent;
  cudaError_t (*event_create)(cudaEvent_t*, unsigned) = &cudaEventCreateWithFlags;
  cudaError_t (*event_destroy)(cudaEvent_t) = &cudaEventDestroy;
  cudaError_t (*event_record)(cudaEvent_t, cudaStream_t) = &cudaEventRecord;
  cudaError_t (*event_query)(cudaEvent_t) = &cudaEventQuery;
  cudaError_t (*device_malloc)(void**, size_t) = &cudaMalloc;
  cudaError_t (*device_free)(void*) = &cudaFree;
  cudaError_t (*memcpy_async)(void*, const void*, size_t, cudaMemcpyKind,
                              cudaStream_t) = &cudaMemcpyAsync;
};

}  // namespace weft
