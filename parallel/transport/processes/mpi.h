#pragma once
// MPI: messages between the processes that mpirun started, or srun with PMIx, on one host or
// several.
#include <functional>
#include <optional>
#include <string>

#include "parallel/bootstrap/launch.h"
#include "parallel/transport/processes/point_to_point.h"

namespace weft {

// True where this build has MPI.
bool mpi_built();
// "Open MPI v4.1.4, ..."; "" where this build has none. Needs no mpirun.
std::string mpi_library();

// True where this MPI says that it takes pointers to the memory of CUDA devices. Open MPI knows it
// from version 5 on only once MPI has been started; nullopt before.
std::optional<bool> mpi_takes_device_memory();

// Starts MPI; the ranks are those of MPI_COMM_WORLD. late(line) is called where they have not come
// together within a minute. Error(kUsage) that names the build option where this build has no MPI.
ProcessMessages make_mpi_messages(const Launch& launch,
                                  const std::function<void(const std::string& line)>& late);

}  // namespace weft
