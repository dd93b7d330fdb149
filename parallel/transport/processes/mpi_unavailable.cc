#include "kernels/check.h"
#include "parallel/transport/processes/mpi.h"

namespace weft {

bool mpi_built() { return false; }
std::string mpi_library() { return ""; }
std::optional<bool> mpi_takes_device_memory() { return false; }

ProcessMessages make_mpi_messages(const Launch& launch,
                                  const std::function<void(const std::string&)>&) {
  throw Error(ErrorKind::kUsage,
              "started as " + to_string(launch) +
                  ", but this build has no MPI: install libopenmpi-dev and configure with "
                  "-DWEFT_MPI=ON, or use --ranks N without mpirun");
}

}  // namespace weft
