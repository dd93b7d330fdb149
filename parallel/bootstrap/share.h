#pragma once
// Share: gives every process of a job the first one's text (an address, an NCCL id) before they can
// send each other messages. Every rank calls it, in the same order.
#include <functional>
#include <string>

namespace weft {

using Share = std::function<std::string(const std::string&)>;

// Shares one text through a file that all ranks see; no other job may use its path. The first rank
// writes it atomically and refuses a file that exists; the others wait for it. The file is removed
// with the first rank's last copy of the function. Error(kComm) that names the file.
Share share_through_file(const std::string& path, int rank, double seconds = 60);

// Shares texts by messages of another communicator of the same ranks (MPI), which must outlive the
// function.
class Communicator;
Share share_over(Communicator& communicator);

}  // namespace weft
