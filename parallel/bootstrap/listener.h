#pragma once
// Listener: the first rank of a job of processes listens on TCP, and the other ranks connect to the
// address in its text. A random token tells the job's own connections from those of strangers.
#include <cstdint>
#include <string>

namespace weft {

struct Listener {
  int socket = -1;     // listening; accept() on it never blocks
  uint64_t token = 0;  // every message of a peer must carry it
  std::string text;    // "address port token", for connect_to_listener()
};

// Listens on a free port of one of `interfaces` ("eth0,eth1"). Where this host has none of them, it
// takes the first interface that other hosts can reach, and the loopback where there is no other.
// Error(kComm).
Listener open_listener(const std::string& interfaces, int peers);

// The next connection that waits at the listener, or -1.
int accept_connection(int listener);

struct Connection {
  int socket = -1;
  uint64_t token = 0;
  std::string rest;  // the text that follows the token
};
// Connects within `seconds` to the listener that `text` describes. Error(kComm) that names the
// address.
Connection connect_to_listener(const std::string& text, double seconds = 60);

}  // namespace weft
