#pragma once
// The part of NCCL that the transport of parallel/ uses, with NCCL's names and meaning, between
// emulated devices (tests/cuda/README.md). Two things differ: ncclCommInitRankConfig and
// ncclCommFinalize block even where the configuration allows them to return before they are done.
#include <cuda_runtime_api.h>

#include <climits>
#include <cstddef>

// The names and numbers are those of NCCL 2.27.
constexpr int NCCL_MAJOR = 2, NCCL_MINOR = 27, NCCL_PATCH = 0;
constexpr int NCCL_VERSION_CODE = NCCL_MAJOR * 10000 + NCCL_MINOR * 100 + NCCL_PATCH;
constexpr size_t NCCL_UNIQUE_ID_BYTES = 128;

using ncclComm_t = struct ncclComm*;

struct ncclUniqueId {
  char internal[NCCL_UNIQUE_ID_BYTES];
};

enum ncclResult_t {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
};
enum ncclDataType_t { ncclInt8 = 0, ncclUint8 = 1, ncclFloat32 = 7 };
enum ncclRedOp_t { ncclSum = 0 };

constexpr int NCCL_CONFIG_UNDEF_INT = INT_MIN;
constexpr unsigned NCCL_CONFIG_MAGIC = 0xcafebeef;

struct ncclConfig_t {
  size_t size;
  unsigned magic, version;
  int blocking, cgaClusterSize, minCTAs, maxCTAs;
  const char* netName;
  int splitShare;
};
constexpr ncclConfig_t NCCL_CONFIG_INITIALIZER{
    sizeof(ncclConfig_t),  NCCL_CONFIG_MAGIC,     NCCL_VERSION_CODE,     NCCL_CONFIG_UNDEF_INT,
    NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, nullptr,
    NCCL_CONFIG_UNDEF_INT};

ncclResult_t ncclGetVersion(int* version);
ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
const char* ncclGetErrorString(ncclResult_t result);
const char* ncclGetLastError(ncclComm_t comm);

ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
