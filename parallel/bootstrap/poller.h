#pragma once
// Poller: waits for sockets. The work of a wait grows with the sockets that are ready, and not with
// those that are watched.
#include <vector>

namespace weft {

class Poller {
 public:
  Poller();
  ~Poller();
  Poller(const Poller&) = delete;

  // Watches a socket until it is closed. `owner` is returned when it can be read, or has ended.
  void watch(int socket, void* owner);
  // Owners of ready sockets, each once; none after `milliseconds`.
  std::vector<void*> wait(int milliseconds);

 private:
  int epoll_;
};

}  // namespace weft
