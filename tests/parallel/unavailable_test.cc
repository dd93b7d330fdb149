// A build without MPI or UCX says what is missing. The files that replace them are part of this
// program, and come before those of the library.
#include <gtest/gtest.h>

#include "kernels/check.h"
#include "parallel/transport/processes/mpi.h"
#include "parallel/transport/processes/ucx.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

TEST(Unavailable, MpiIsNamedWithItsPackageAndOption) {
  EXPECT_FALSE(mpi_built());
  EXPECT_EQ(mpi_library(), "");
  EXPECT_EQ(mpi_takes_device_memory(), false);
  const Launch launch{.launcher = Launcher::kMpirun, .ranks = 3};
  EXPECT_EQ(thrown_error([&] { make_mpi_messages(launch, {}); }, ErrorKind::kUsage),
            "started as 3 processes by mpirun, but this build has no MPI: install libopenmpi-dev "
            "and configure with -DWEFT_MPI=ON, or use --ranks N without mpirun");
}

TEST(Unavailable, UcxIsNamedWithItsPackageAndOption) {
  EXPECT_FALSE(ucx_built());
  EXPECT_EQ(ucx_library(), "");
  EXPECT_FALSE(ucx_takes_device_memory());
  const Launch launch{.launcher = Launcher::kTorchrun, .ranks = 3};
  EXPECT_EQ(thrown_error([&] { make_ucx_messages(launch, {}); }, ErrorKind::kUsage),
            "started as 3 processes by torchrun, but this build has no UCX: install libucx-dev and "
            "configure with -DWEFT_UCX=ON, or use mpirun, or one process with --ranks 3");
}

}  // namespace
}  // namespace weft::test
