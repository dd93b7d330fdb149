#include "parallel/transport/mpi.h"

namespace weft {

bool mpi_built() { return false; }
std::string mpi_library() { return ""; }

std::shared_ptr<Transport> make_mpi_transport(const MpiOptions&) {
  throw Error(ErrorKind::kUsage,
              "started by mpirun, but this build has no MPI: install libopenmpi-dev and configure "
              "with -DWEFT_MPI=ON, or use --ranks N without mpirun");
}

void finish_mpi() {}

}  // namespace weft
