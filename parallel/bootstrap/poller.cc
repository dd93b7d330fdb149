#include "parallel/bootstrap/poller.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "kernels/check.h"

namespace weft {

namespace {

void control(int epoll, int what, int socket, void* owner, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = owner;
  if (epoll_ctl(epoll, what, socket, &event) != 0)
    throw Error(ErrorKind::kComm, std::string("epoll_ctl: ") + std::strerror(errno));
}

}  // namespace

Poller::Poller() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  if (epoll_ < 0)
    throw Error(ErrorKind::kComm, std::string("epoll_create1: ") + std::strerror(errno));
}

Poller::~Poller() { close(epoll_); }

void Poller::watch(int socket, void* owner) {
  control(epoll_, EPOLL_CTL_ADD, socket, owner, EPOLLIN);
}

void Poller::watch_writes(int socket, void* owner, bool wanted) {
  control(epoll_, EPOLL_CTL_MOD, socket, owner, wanted ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

std::vector<void*> Poller::wait(int milliseconds) {
  epoll_event ready[64];
  const int count = epoll_wait(epoll_, ready, 64, milliseconds);
  std::vector<void*> owners;
  for (int i = 0; i < count; ++i) owners.push_back(ready[i].data.ptr);
  return owners;
}

}  // namespace weft
