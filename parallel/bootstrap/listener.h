#pragma once
// Listener: the first rank of a job of processes listens on TCP, at all addresses by which other
// hosts may reach it, and the other ranks try the addresses in its text. A random token tells the
// job's own connections from those of strangers, and a greeting tells the right listener from
// another program at the same address of another host.
#include <cstdint>
#include <string>
#include <vector>

namespace weft {

struct Listener {
  std::vector<int> sockets;  // one per address; they never block
  uint64_t token = 0;        // every message of a peer must carry it
  uint64_t greeting = 0;     // sent to every connection
  std::string text;          // "10.0.0.1:4000,[fd00::2]:4001 token greeting"
};

// Listens on free ports of the addresses that `interfaces` names (named_addresses in
// parallel/host/addresses.h: "eth0,10.0.0.0/8"). Where this host has none of them, it takes
// all that other hosts may reach, likely ones first. Error(kComm).
Listener open_listener(const std::string& interfaces, int peers);
void close_listener(const Listener& listener);

// Returns the next connection that waits at the listener, greeted, or -1.
int accept_connection(const Listener& listener);

struct Connection {
  int socket = -1;
  uint64_t token = 0;
  std::string rest;  // the text that follows the token and the greeting
};
// Connects within `seconds` to the listener that `text` describes: to the first of its addresses
// that greets within a second. Those that may still do so are tried again. Error(kComm) that names
// every address and what is wrong with it.
Connection connect_to_listener(const std::string& text, double seconds = 60);

}  // namespace weft
