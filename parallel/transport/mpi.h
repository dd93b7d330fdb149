#pragma once
// MPI transport: the ranks are processes started by mpirun, on one host or several. It uses
// point-to-point messages alone, so that bytes are counted where they are sent, and its waits sleep
// between polls, so that they never take the core from a rank that computes.
#include <functional>
#include <memory>
#include <string>

#include "parallel/transport/transport.h"

namespace weft {

// True where this build has MPI.
bool mpi_built();
// "Open MPI v4.1.4, ..."; "" where this build has none. Needs no mpirun.
std::string mpi_library();

struct MpiOptions {
  // Callbacks for events that no Error can report. `warning` runs on the first rank where a peer is
  // silent. `stuck` runs where this process has not noticed a failure within seconds, because it
  // computes or still starts; it ends the process.
  std::function<void(const std::string&line)> warning{}, stuck{};
  double heartbeat_timeout_s =
      4.5;  // as in settings_for_timeout (parallel/bootstrap/control_plane.h)
  // A thread drives MPI while messages are under way and no rank's wait does, so that messages
  // above MPI's eager limit move while this process computes.
  bool progress_thread = true;
  // The largest MPI message in bytes; a larger payload is sent in parts, because MPI counts with an
  // int.
  int64_t largest_part = int64_t{1} << 30;
};

// The ranks are those of MPI_COMM_WORLD; the first call makes the transport. Heartbeats
// (parallel/bootstrap/control_plane.h) end every rank's waits soon after a peer's last sign.
// Error(kUsage) that names the build option where this build has no MPI.
std::shared_ptr<Transport> make_mpi_transport(const MpiOptions& options = {});

// Ends MPI in good order; all ranks call it. A process that failed ends without it.
void finish_mpi();

}  // namespace weft
