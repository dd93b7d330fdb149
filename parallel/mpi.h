#pragma once
// MPI transport: the ranks are processes started by mpirun, on one host or several. Messages are
// point-to-point messages of our own, so that bytes are counted where they are sent, and waits
// sleep between looks, so that they never take the core from a rank that computes.
#include <memory>
#include <string_view>

#include "parallel/transport.h"

namespace weft {

// Whether this build can, and whether this process was started by mpirun.
bool mpi_built();
bool mpi_launched();

// The ranks of MPI_COMM_WORLD, once per process. Error(kUsage) that names the build option where
// this build has no MPI. A message holds less than 2 GiB.
std::shared_ptr<Transport> make_mpi_transport();

// Ranks of this host among them.
int mpi_local_ranks();

// Ends MPI in good order; all ranks call it. A process that failed ends without it.
void finish_mpi();

}  // namespace weft
