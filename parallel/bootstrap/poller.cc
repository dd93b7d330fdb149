#include "parallel/bootstrap/poller.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "kernels/check.h"

namespace weft {

Poller::Poller() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  if (epoll_ < 0)
    throw Error(ErrorKind::kComm, std::string("epoll_create1: ") + std::strerror(errno));
}

Poller::~Poller() { close(epoll_); }

void Poller::watch(int socket, void* owner) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = owner;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, socket, &event) != 0)
    throw Error(ErrorKind::kComm, std::string("epoll_ctl: ") + std::strerror(errno));
}

std::vector<void*> Poller::wait(int milliseconds) {
  epoll_event ready[64];
  const int count = epoll_wait(epoll_, ready, 64, milliseconds);
  std::vector<void*> owners;
  for (int i = 0; i < count; ++i) owners.push_back(ready[i].data.ptr);
  return owners;
}

}  // namespace weft
