#include <cstdlib>

#include "parallel/mpi.h"

namespace weft {

bool mpi_built() { return false; }
bool mpi_launched() { return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr; }

std::shared_ptr<Transport> make_mpi_transport() {
  throw Error(ErrorKind::kUsage,
              "started by mpirun, but this build has no MPI: install libopenmpi-dev and configure "
              "with -DWEFT_MPI=ON, or use --ranks N without mpirun");
}

int mpi_local_ranks() { return 1; }
void finish_mpi() {}

}  // namespace weft
