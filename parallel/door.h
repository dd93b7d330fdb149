#pragma once
// Door: the first rank of a job of processes listens on TCP, the others come to the address that
// its text names. A token tells the job's own from strangers.
#include <cstdint>
#include <string>

namespace weft {

struct Door {
  int socket = -1;     // listening, never blocks
  uint64_t token = 0;  // every message of a guest must carry it
  std::string text;    // "address port token", for knock()
};

// Listens on one of `interfaces` ("eth0,eth1"), on any that others can reach where it has none of
// them, on the loopback where there is no other; a free port. Error(kComm).
Door open_door(const std::string& interfaces, int guests);

// Connects to the door of `text` within `seconds`; what stands behind the token is `rest`.
// Error(kComm) that names the address.
struct Knock {
  int socket = -1;
  uint64_t token = 0;
  std::string rest;
};
Knock knock(const std::string& text, double seconds = 60);

}  // namespace weft
