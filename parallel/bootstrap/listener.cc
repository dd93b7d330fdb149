#include "parallel/bootstrap/listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <sstream>
#include <thread>

#include "kernels/check.h"
#include "parallel/host/addresses.h"

namespace weft {

namespace {

using Time = std::chrono::steady_clock;

constexpr std::chrono::seconds kTry{1};                 // of one address
constexpr std::chrono::milliseconds kBetweenTries{50};  // where all addresses refuse at once

[[noreturn]] void socket_error(const std::string& call) {
  throw Error(ErrorKind::kComm, call + ": " + std::strerror(errno));
}

void no_delay(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// An address with a port, as the calls of sockets take and return it.
struct Endpoint {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;

  Endpoint() = default;
  Endpoint(const IpAddress& address, uint16_t port) {
    storage.ss_family = address.family;
    length = address.family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    auto& v4 = reinterpret_cast<sockaddr_in&>(storage);
    auto& v6 = reinterpret_cast<sockaddr_in6&>(storage);
    (address.family == AF_INET ? v4.sin_port : v6.sin6_port) = htons(port);
    if (address.family == AF_INET)
      std::memcpy(&v4.sin_addr, &address.bytes, sizeof v4.sin_addr);
    else
      v6.sin6_addr = address.bytes;
  }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

std::string endpoint_text(const IpAddress& address, uint16_t port) {
  const std::string host = to_string(address);
  return (address.family == AF_INET ? host : "[" + host + "]") + ":" + std::to_string(port);
}

// Returns a socket that listens at a free port of the address, which it writes to `port`, or -1.
int listen_at(const IpAddress& address, int peers, uint16_t& port) {
  const int one = socket(address.family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (one < 0) return -1;
  Endpoint at(address, 0);
  if (bind(one, at.get(), at.length) != 0 || listen(one, peers) != 0 ||
      getsockname(one, at.get(), &at.length) != 0) {
    const int error = errno;
    close(one);
    errno = error;
    return -1;
  }
  port = ntohs(address.family == AF_INET ? reinterpret_cast<sockaddr_in&>(at.storage).sin_port
                                         : reinterpret_cast<sockaddr_in6&>(at.storage).sin6_port);
  return one;
}

// One address of the first rank, as another rank tries it.
struct Candidate {
  std::string text;
  Endpoint endpoint;
  std::string fault{};    // of the last try
  bool hopeless = false;  // no later try can succeed
};

// Waits until `events` or the time. False with errno where the time is over first.
bool wait_for(int socket, short events, Time::time_point until) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Time::now());
    pollfd one{.fd = socket, .events = events, .revents = 0};
    const int ready = poll(&one, 1, static_cast<int>(std::max<int64_t>(0, left.count())));
    if (ready > 0) return true;
    if (ready == 0) errno = ETIMEDOUT;
    if (ready == 0 || errno != EINTR) return false;
  }
}

// Begins a connection and waits for its end. Returns 0 or the error.
int finish_connect(int socket, Endpoint& to, Time::time_point until) {
  if (connect(socket, to.get(), to.length) == 0) return 0;
  if (errno != EINPROGRESS || !wait_for(socket, POLLOUT, until)) return errno;
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

// Reads the greeting of whoever answers. False where it is another one or does not come.
bool is_greeted(int socket, uint64_t greeting, Time::time_point until, Candidate& candidate) {
  uint64_t heard = 0;
  for (size_t have = 0; have < sizeof heard;) {
    if (!wait_for(socket, POLLIN, until)) {
      candidate.fault = "no answer within a second";
      return false;
    }
    const ssize_t came =
        recv(socket, reinterpret_cast<char*>(&heard) + have, sizeof heard - have, 0);
    if (came <= 0) {
      candidate.fault = "the connection was closed";
      return false;
    }
    have += static_cast<size_t>(came);
  }
  candidate.hopeless = heard != greeting;
  if (candidate.hopeless) candidate.fault = "another program answers";
  return !candidate.hopeless;
}

// Returns a connection to the right listener, or -1.
int try_candidate(Candidate& candidate, uint64_t greeting) {
  const Time::time_point until = Time::now() + kTry;
  const int one =
      socket(candidate.endpoint.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const int error = one < 0 ? errno : finish_connect(one, candidate.endpoint, until);
  if (error != 0) {
    candidate.fault = error == ETIMEDOUT ? "no answer within a second" : std::strerror(error);
    candidate.hopeless = error != ETIMEDOUT && error != EHOSTUNREACH;
  } else if (is_greeted(one, greeting, until, candidate)) {
    return one;
  }
  if (one >= 0) close(one);
  return -1;
}

// "10.0.0.1:4000" or "[fd00::2]:4001".
std::optional<Candidate> parse_candidate(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return {};
  std::string host = text.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const std::optional<IpAddress> address = parse_address(host);
  const int port = std::atoi(text.c_str() + colon + 1);
  if (!address || port < 1 || port > 65535) return {};
  return Candidate{.text = text, .endpoint = Endpoint(*address, static_cast<uint16_t>(port))};
}

}  // namespace

Listener open_listener(const std::string& interfaces, int peers) {
  Listener listener;
  uint64_t random[2];
  if (getrandom(random, sizeof random, 0) != sizeof random) socket_error("getrandom");
  listener.token = random[0], listener.greeting = random[1];
  const std::vector<HostAddress> all = host_addresses();
  std::vector<HostAddress> offered = named_addresses(all, interfaces);
  if (offered.empty()) offered = reachable_addresses(all);
  errno = EADDRNOTAVAIL;
  for (const HostAddress& one : offered) {
    uint16_t port = 0;
    // An IPv6 address may not be usable yet, or any more.
    const int socket = listen_at(one.address, peers, port);
    if (socket < 0) continue;
    listener.text += (listener.sockets.empty() ? "" : ",") + endpoint_text(one.address, port);
    listener.sockets.push_back(socket);
  }
  if (listener.sockets.empty()) socket_error("listening for the other ranks");
  listener.text += " " + std::to_string(listener.token) + " " + std::to_string(listener.greeting);
  return listener;
}

void close_listener(const Listener& listener) {
  for (const int socket : listener.sockets) close(socket);
}

int accept_connection(const Listener& listener) {
  for (const int waiting : listener.sockets) {
    const int socket = accept4(waiting, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) continue;
    no_delay(socket);
    // The buffer of a new connection has room for it.
    (void)send(socket, &listener.greeting, sizeof listener.greeting, MSG_NOSIGNAL | MSG_DONTWAIT);
    return socket;
  }
  return -1;
}

Connection connect_to_listener(const std::string& text, double seconds) {
  const Time::time_point end = Time::now() + std::chrono::duration_cast<Time::duration>(
                                                 std::chrono::duration<double>(seconds));
  std::istringstream words(text);
  std::string addresses;
  Connection out;
  uint64_t greeting = 0;
  words >> addresses >> out.token >> greeting;
  std::vector<Candidate> candidates;
  std::istringstream list(words ? addresses : "");
  for (std::string one; std::getline(list, one, ',');)
    if (std::optional<Candidate> candidate = parse_candidate(one))
      candidates.push_back(std::move(*candidate));
  if (candidates.empty())
    throw Error(ErrorKind::kComm, "rank 0's text '" + text + "' names no address");
  // The rest follows after a blank and may be bytes of any kind.
  if (const auto after = words.tellg(); after >= 0 && after < std::ssize(text))
    out.rest = text.substr(static_cast<size_t>(after) + 1);
  do {
    for (Candidate& candidate : candidates) {
      if (candidate.hopeless) continue;
      out.socket = try_candidate(candidate, greeting);
      if (out.socket < 0) continue;
      fcntl(out.socket, F_SETFL, fcntl(out.socket, F_GETFL) & ~O_NONBLOCK);
      const timeval limit{static_cast<time_t>(std::max(1.0, seconds)), 0};
      setsockopt(out.socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
      no_delay(out.socket);
      return out;
    }
    std::this_thread::sleep_for(kBetweenTries);
  } while (Time::now() < end && !std::ranges::all_of(candidates, &Candidate::hopeless));
  std::string faults;
  for (const Candidate& candidate : candidates)
    faults += (faults.empty() ? "" : "; ") + candidate.text + ": " + candidate.fault;
  throw Error(ErrorKind::kComm, "connecting to rank 0 at " + faults);
}

}  // namespace weft
