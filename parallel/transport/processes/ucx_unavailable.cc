#include "kernels/check.h"
#include "parallel/transport/processes/ucx.h"

namespace weft {

bool ucx_built() { return false; }
std::string ucx_library() { return ""; }
bool ucx_takes_device_memory() { return false; }

ProcessMessages make_ucx_messages(const Launch& launch, const MeetingPoint&) {
  throw Error(ErrorKind::kUsage,
              "started as " + to_string(launch) +
                  ", but this build has no UCX: install libucx-dev and configure with "
                  "-DWEFT_UCX=ON, or use mpirun, or one process with --ranks " +
                  std::to_string(launch.ranks));
}

}  // namespace weft
