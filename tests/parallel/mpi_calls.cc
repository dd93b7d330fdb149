// MPI's profiling interface: a program may replace every MPI_X by one of its own over PMPI_X.
#include <mpi.h>

#include "tests/parallel/library_calls.h"

using weft::test::library_calls;

extern "C" int MPI_Isend(const void* data, int count, MPI_Datatype type, int peer, int tag,
                         MPI_Comm communicator, MPI_Request* request) {
  library_calls().count(count);
  return PMPI_Isend(data, count, type, peer, tag, communicator, request);
}
extern "C" int MPI_Test(MPI_Request* request, int* done, MPI_Status* status) {
  return library_calls().fails ? MPI_ERR_OTHER : PMPI_Test(request, done, status);
}
extern "C" int MPIX_Query_cuda_support() { return library_calls().takes_device_memory; }

void weft::test::end_library() { MPI_Finalize(); }
