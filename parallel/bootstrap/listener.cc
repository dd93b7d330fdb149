#include "parallel/bootstrap/listener.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "kernels/check.h"

namespace weft {

namespace {

[[noreturn]] void socket_error(const std::string& call) {
  throw Error(ErrorKind::kComm, call + ": " + std::strerror(errno));
}

void no_delay(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

bool lists(const std::string& names, const std::string& name) {
  return ("," + names + ",").find("," + name + ",") != std::string::npos;
}

in_addr listening_address(const std::string& interfaces) {
  in_addr found{}, named{};
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) socket_error("getifaddrs");
  for (const ifaddrs* at = list; at; at = at->ifa_next) {
    if (!at->ifa_addr || at->ifa_addr->sa_family != AF_INET) continue;
    const in_addr address = reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr;
    if (!named.s_addr && lists(interfaces, at->ifa_name)) named = address;
    if (!found.s_addr && !(at->ifa_flags & IFF_LOOPBACK)) found = address;
  }
  freeifaddrs(list);
  if (named.s_addr) return named;
  if (!found.s_addr) found.s_addr = htonl(INADDR_LOOPBACK);
  return found;
}

}  // namespace

Listener open_listener(const std::string& interfaces, int peers) {
  Listener listener;
  if (getrandom(&listener.token, sizeof listener.token, 0) != sizeof listener.token)
    socket_error("getrandom");
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr = listening_address(interfaces);
  socklen_t length = sizeof at;
  listener.socket = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (listener.socket < 0 ||
      bind(listener.socket, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0 ||
      listen(listener.socket, peers) != 0 ||
      getsockname(listener.socket, reinterpret_cast<sockaddr*>(&at), &length) != 0)
    socket_error("listening for the other ranks");
  char host[INET_ADDRSTRLEN] = {};
  inet_ntop(AF_INET, &at.sin_addr, host, sizeof host);
  listener.text = std::string(host) + " " + std::to_string(ntohs(at.sin_port)) + " " +
                  std::to_string(listener.token);
  return listener;
}

int accept_connection(int listener) {
  const int socket = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  if (socket >= 0) no_delay(socket);
  return socket;
}

Connection connect_to_listener(const std::string& text, double seconds) {
  char name[64] = {};
  unsigned port = 0;
  unsigned long long token = 0;
  int length = 0;
  sockaddr_in to{};
  to.sin_family = AF_INET;
  if (std::sscanf(text.c_str(), "%63s %u %llu%n", name, &port, &token, &length) != 3 ||
      inet_pton(AF_INET, name, &to.sin_addr) != 1)
    throw Error(ErrorKind::kComm, "rank 0's text '" + text + "' names no address");
  to.sin_port = htons(static_cast<uint16_t>(port));
  Connection out;
  out.token = token;
  out.rest = text.substr(std::min(text.size(), static_cast<size_t>(length) + 1));
  out.socket = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const timeval limit{static_cast<time_t>(std::max(1.0, seconds)), 0};
  setsockopt(out.socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);  // also limits connect()
  if (out.socket < 0 || connect(out.socket, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) {
    const int error = errno;
    close(out.socket);
    errno = error;
    socket_error("connecting to rank 0 at " + std::string(name) + " port " + std::to_string(port));
  }
  no_delay(out.socket);
  return out;
}

}  // namespace weft
