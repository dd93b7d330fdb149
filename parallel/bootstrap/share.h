#pragma once
// Share: gives every process of a job the first one's text (an address) before they can
// send each other messages. Every rank calls it, in the same order.
#include <functional>
#include <string>

namespace weft {

using Share = std::function<std::string(const std::string&)>;

// Shares texts by messages of another communicator of the same ranks (MPI), which must outlive the
// function.
class Communicator;
Share share_over(Communicator& communicator);

}  // namespace weft
