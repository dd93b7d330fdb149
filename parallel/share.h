#pragma once
// Share: how the processes of a job learn the first one's text (an address, an NCCL id) before they
// can talk to each other. Every rank calls it, in the same order; every rank gets the first's text.
#include <functional>
#include <string>

namespace weft {

using Share = std::function<std::string(const std::string&)>;

// Through a file that all ranks see, at a path of this job's alone. The first rank writes it whole
// and refuses one that is there already; the others wait for it; it is removed with the first
// rank's last copy of the function. One text only. Error(kComm) that names the file.
Share share_through_file(const std::string& path, int rank, double seconds = 60);

// Over messages of another communicator of the same ranks (MPI). It must outlive the function.
class Communicator;
Share share_over(Communicator& communicator);

}  // namespace weft
