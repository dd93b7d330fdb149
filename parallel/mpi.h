#pragma once
// MPI transport: the ranks are processes started by mpirun, on one host or several. Messages are
// point-to-point messages of our own, so that bytes are counted where they are sent, and waits
// sleep between looks, so that they never take the core from a rank that computes.
#include <functional>
#include <memory>
#include <string>

#include "parallel/transport.h"

namespace weft {

// Whether this build can, and whether this process was started by mpirun.
bool mpi_built();
// "Open MPI v4.1.4, ..."; "" where this build has none. Needs no mpirun.
std::string mpi_library();

// What cannot be told by an Error: a peer that is silent (on the first rank), and a failure that
// this process has not noticed within seconds, because it computes or still starts; `stuck` ends
// it.
struct MpiReports {
  std::function<void(const std::string&line)> warning, stuck;
};

// The ranks of MPI_COMM_WORLD, made once per process by the first call. Heartbeats
// (parallel/control_plane.h) end every rank's waits within seconds of a peer's last sign.
// Error(kUsage) that names the build option where this build has no MPI. A message holds less than
// 2 GiB.
std::shared_ptr<Transport> make_mpi_transport(const MpiReports& reports = {});

// Ends MPI in good order; all ranks call it. A process that failed ends without it.
void finish_mpi();

}  // namespace weft
