#include "parallel/bootstrap/meeting.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <list>
#include <set>
#include <thread>

#include "kernels/check.h"
#include "parallel/bootstrap/frames.h"

namespace weft {

namespace {

using MeetingTime = std::chrono::steady_clock::time_point;

constexpr std::chrono::milliseconds kRetryTime{100};
constexpr int kConnectMs = 1000;                // of one address
constexpr std::chrono::seconds kAnswerTime{2};  // the first rank's answer may follow the limit
constexpr int64_t kLargestText = int64_t{1} << 24;
constexpr char kMagic[8] = {'w', 'e', 'f', 't', '-', 'j', 'o', 'b'};

// The first words of a connection, both ways. The answer's text is "" or says why the process is
// refused.
struct Greeting {
  char magic[8];
  int32_t rank = 0, ranks = 0;
  int32_t failed = 0;   // 1: the process ends with an error of its own
  char text[240] = {};  // of a process that comes: the name of its job
};

bool is_greeting(const Greeting& greeting) {
  return std::memcmp(greeting.magic, kMagic, sizeof kMagic) == 0;
}

Greeting make_greeting(int rank, int ranks, const std::string& text) {
  Greeting greeting;
  std::memcpy(greeting.magic, kMagic, sizeof kMagic);
  greeting.rank = rank;
  greeting.ranks = ranks;
  set_text(greeting, text);
  return greeting;
}

int milliseconds_to(MeetingTime limit) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(limit - std::chrono::steady_clock::now());
  return static_cast<int>(std::max<int64_t>(0, left.count()));
}

// Waits until the socket is ready for `events`; false at the limit.
bool await_ready(int socket, short events, MeetingTime limit) {
  pollfd one{.fd = socket, .events = events, .revents = 0};
  for (;;) {
    const int ready = poll(&one, 1, milliseconds_to(limit));
    if (ready >= 0 || errno != EINTR) return ready > 0;
  }
}

// Moves all bytes; false where the connection has ended, or at the limit.
template <class Move>
bool move_all(int socket, short events, MeetingTime limit, size_t bytes, Move&& move) {
  for (size_t at = 0; at < bytes;) {
    if (!await_ready(socket, events, limit)) return false;
    const ssize_t moved = move(at);
    if (moved < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (moved <= 0) return false;
    at += static_cast<size_t>(moved);
  }
  return true;
}

bool read_all(int socket, void* data, size_t bytes, MeetingTime limit) {
  return move_all(socket, POLLIN, limit, bytes, [&](size_t at) {
    return recv(socket, static_cast<char*>(data) + at, bytes - at, MSG_DONTWAIT);
  });
}

bool write_all(int socket, const void* data, size_t bytes, MeetingTime limit) {
  return move_all(socket, POLLOUT, limit, bytes, [&](size_t at) {
    return send(socket, static_cast<const char*>(data) + at, bytes - at,
                MSG_DONTWAIT | MSG_NOSIGNAL);
  });
}

bool read_text(int socket, std::string& text, MeetingTime limit) {
  int64_t size = 0;
  if (!read_all(socket, &size, sizeof size, limit) || size < 0 || size > kLargestText) return false;
  text.resize(static_cast<size_t>(size));
  return read_all(socket, text.data(), text.size(), limit);
}

std::string with_size(const std::string& text) {
  const auto size = static_cast<int64_t>(text.size());
  return std::string(reinterpret_cast<const char*>(&size), sizeof size) + text;
}

struct AddressList {
  addrinfo* first = nullptr;
  ~AddressList() {
    if (first) freeaddrinfo(first);
  }
};

// "" or the reason why the name has no address.
std::string find_addresses(const MeetingPoint& point, AddressList& list) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  const int code =
      getaddrinfo(point.host.c_str(), std::to_string(point.port).c_str(), &wanted, &list.first);
  return code == 0 ? "" : gai_strerror(code);
}

// A connection to the first address of the point that answers, or -1 and the reason.
int connect_once(const MeetingPoint& point, std::string& reason) {
  AddressList list;
  reason = find_addresses(point, list);
  for (const addrinfo* at = list.first; at; at = at->ai_next) {
    const int made = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (made < 0) continue;
    int error = connect(made, at->ai_addr, at->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      socklen_t length = sizeof error;
      error = ETIMEDOUT;
      pollfd one{.fd = made, .events = POLLOUT, .revents = 0};
      if (poll(&one, 1, kConnectMs) > 0) getsockopt(made, SOL_SOCKET, SO_ERROR, &error, &length);
    }
    if (error == 0) return made;
    reason = std::strerror(error);
    close(made);
  }
  return -1;
}

// Listens at the point's port: on the loopback where the point is there, else on every address of
// this host, because its name may mean another one here.
int listen_at_point(const MeetingPoint& point, int ranks) {
  sockaddr_in6 at{};
  at.sin6_family = AF_INET6;
  at.sin6_port = htons(static_cast<uint16_t>(point.port));
  at.sin6_addr = in6addr_any;
  sockaddr_in four{};
  four.sin_family = AF_INET;
  four.sin_port = at.sin6_port;
  four.sin_addr.s_addr = htonl(is_loopback(point.host) ? INADDR_LOOPBACK : INADDR_ANY);
  if (point.host == "::1") at.sin6_addr = in6addr_loopback;
  const bool six = point.host == "::1" || !is_loopback(point.host);
  int made = six ? socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0) : -1;
  const bool both = made >= 0;  // a host may have no IPv6
  if (!both) made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const int on = 1, off = 0;
  setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (both) setsockopt(made, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  const auto* address =
      both ? reinterpret_cast<const sockaddr*>(&at) : reinterpret_cast<const sockaddr*>(&four);
  const socklen_t length = both ? sizeof at : sizeof four;
  if (made >= 0 && bind(made, address, length) == 0 && listen(made, ranks) == 0) return made;
  const int error = errno;
  if (made >= 0) close(made);
  throw Error(
      ErrorKind::kComm,
      "start-up: rank 0 cannot listen at " + point.text() + ": " + std::strerror(error) +
          (error == EADDRINUSE ? "; --port or MASTER_PORT gives the job another port" : ""));
}

// The address of this end of a connection.
IpAddress own_address(int connected) {
  sockaddr_storage at{};
  socklen_t length = sizeof at;
  getsockname(connected, reinterpret_cast<sockaddr*>(&at), &length);
  IpAddress own{.family = at.ss_family};
  const in6_addr& six = reinterpret_cast<const sockaddr_in6&>(at).sin6_addr;
  if (at.ss_family == AF_INET) {
    std::memcpy(&own.bytes, &reinterpret_cast<const sockaddr_in&>(at).sin_addr, sizeof(in_addr));
  } else if (IN6_IS_ADDR_V4MAPPED(&six)) {  // the listener serves both families
    own.family = AF_INET;
    std::memcpy(&own.bytes, six.s6_addr + 12, sizeof(in_addr));
  } else {
    own.bytes = six;
  }
  return own;
}

std::string list_of_ranks(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "rank " : ", rank ") + std::to_string(rank);
  return text;
}

}  // namespace

struct Meeting::Impl {
  // A process that has connected and not greeted yet.
  struct Newcomer {
    int socket = -1;
    Frames<Greeting> frames;
  };

  int rank, ranks;
  MeetingPoint point;
  double limit_s;
  MeetingTime limit;
  const bool failed;    // this process ends with an error of its own
  std::set<int> ended;  // the other ranks that came and said so of themselves
  int listener = -1;
  std::list<Newcomer> newcomers;
  std::vector<int> sockets;  // the first rank's, by rank; the others have that of rank 0

  Impl(int own, int count, const MeetingPoint& at, double seconds, bool has_failed = false)
      : rank(own),
        ranks(count),
        point(at),
        limit_s(seconds),
        limit(std::chrono::steady_clock::now() + std::chrono::duration_cast<MeetingTime::duration>(
                                                     std::chrono::duration<double>(seconds))),
        failed(has_failed),
        sockets(own == 0 ? count : 1, -1) {}

  ~Impl() {
    if (listener >= 0) close(listener);
    for (const Newcomer& newcomer : newcomers) close(newcomer.socket);
    for (const int one : sockets)
      if (one >= 0) close(one);
  }

  std::string within() const {
    char text[32];
    std::snprintf(text, sizeof text, " within %g s", limit_s);
    return text;
  }

  // Ends the start-up of every rank that is here with the same line.
  [[noreturn]] void fail(const std::string& line) {
    const std::string answer = with_size(line);
    for (const int one : sockets)
      if (one >= 0) write_all(one, answer.data(), answer.size(), limit + kAnswerTime);
    throw Error(ErrorKind::kComm, line);
  }

  // --- the first rank ---

  void await_newcomers() {
    listener = listen_at_point(point, ranks);
    const auto missing = [&] {
      return std::count(sockets.begin() + 1, sockets.end(), -1) - std::ssize(ended);
    };
    while (missing() > 0 && milliseconds_to(limit) > 0) {
      hear_newcomers();
      // Those that come at about the same time hear of it, too.
      if (!ended.empty()) limit = std::min(limit, std::chrono::steady_clock::now() + kAnswerTime);
    }
    if (!ended.empty())
      fail("start-up: " + list_of_ranks({*ended.begin()}) + " has ended with an error of its own");
    if (missing() > 0) fail_without_the_missing();
    close(listener);
    listener = -1;
  }

  // Tells those that come that this process has failed.
  void send_newcomers_away() {
    listener = listen_at_point(point, ranks);
    while (std::ssize(ended) < ranks - 1 && milliseconds_to(limit) > 0) hear_newcomers();
  }

  void hear_newcomers() {
    std::vector<pollfd> watched{{.fd = listener, .events = POLLIN, .revents = 0}};
    for (const Newcomer& newcomer : newcomers)
      watched.push_back({.fd = newcomer.socket, .events = POLLIN, .revents = 0});
    poll(watched.data(), watched.size(), milliseconds_to(limit));
    for (int one; (one = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;)
      newcomers.emplace_back().socket = one;
    newcomers.remove_if([&](Newcomer& newcomer) { return greeted(newcomer); });
  }

  [[noreturn]] void fail_without_the_missing() {
    std::vector<int> missing;
    for (int other = 1; other < ranks; ++other)
      if (sockets[other] < 0) missing.push_back(other);
    fail("start-up: not all of the " + std::to_string(ranks) + " ranks came to " + point.text() +
         within() + "; missing: " + list_of_ranks(missing));
  }

  // True where the newcomer has become a rank, or was sent away.
  bool greeted(Newcomer& newcomer) {
    bool taken = false;
    std::string twice;
    const bool open =
        newcomer.frames.read(newcomer.socket, MSG_DONTWAIT, [&](const Greeting& greeting) {
          if (!is_greeting(greeting)) return false;  // a stranger
          std::string refusal;
          if (greeting.text != point.job || greeting.ranks != ranks || greeting.rank < 1 ||
              greeting.rank >= ranks)
            refusal = "the rank 0 there leads another job, of " + std::to_string(ranks) + " ranks" +
                      (point.job.empty() ? "" : " (" + point.job + ")");
          else if (sockets[greeting.rank] >= 0)
            twice = refusal =
                "two processes say that they are rank " + std::to_string(greeting.rank);
          Greeting answer = make_greeting(0, ranks, refusal);
          answer.failed = failed;
          write_all(newcomer.socket, &answer, sizeof answer, limit);
          taken = refusal.empty() && !failed && !greeting.failed;
          if (refusal.empty() && greeting.failed) ended.insert(greeting.rank);
          if (taken) sockets[greeting.rank] = newcomer.socket;
          return false;  // what follows belongs to exchange()
        });
    if (!taken && !open) close(newcomer.socket);
    if (!twice.empty()) {
      newcomer.socket = -1;
      fail("start-up: " + twice);
    }
    return taken || !open;
  }

  std::vector<std::string> gather(const std::string& own) {
    std::vector<std::string> texts(ranks);
    texts[0] = own;
    std::vector<int> silent;
    for (int other = 1; other < ranks; ++other)
      if (!read_text(sockets[other], texts[other], limit)) silent.push_back(other);
    if (!silent.empty()) fail("start-up: no word" + within() + " from " + list_of_ranks(silent));
    std::string answer = with_size("");
    for (const std::string& text : texts) answer += with_size(text);
    for (int other = 1; other < ranks; ++other)
      write_all(sockets[other], answer.data(), answer.size(), limit);
    return texts;
  }

  // --- the other ranks ---

  void find_first() {
    std::string reason;
    while (milliseconds_to(limit) > 0) {
      sockets[0] = connect_once(point, reason);
      if (sockets[0] >= 0 && welcomed(reason)) return;
      if (sockets[0] >= 0) close(sockets[0]);
      sockets[0] = -1;
      std::this_thread::sleep_for(kRetryTime);
    }
    throw Error(ErrorKind::kComm,
                "start-up: rank 0 does not answer at " + point.text() + within() + ": " + reason);
  }

  bool welcomed(std::string& reason) {
    const Greeting own = make_greeting(rank, ranks, point.job);
    Greeting answer;
    reason = "what listens there is no rank 0";
    if (!write_all(sockets[0], &own, sizeof own, limit) ||
        !read_all(sockets[0], &answer, sizeof answer, limit) || !is_greeting(answer))
      return false;
    answer.text[sizeof answer.text - 1] = 0;
    if (*answer.text)
      throw Error(ErrorKind::kComm, "start-up: at " + point.text() + ": " + answer.text);
    if (answer.failed)
      throw Error(ErrorKind::kUsage, "start-up: rank 0 has ended with an error of its own");
    return true;
  }

  // Says that this process has failed. Returns whether the first rank has, too.
  bool first_has_failed() {
    Greeting own = make_greeting(rank, ranks, point.job);
    own.failed = 1;
    std::string reason;
    while (milliseconds_to(limit) > 0) {
      Greeting answer;
      sockets[0] = connect_once(point, reason);
      if (sockets[0] >= 0 && write_all(sockets[0], &own, sizeof own, limit) &&
          read_all(sockets[0], &answer, sizeof answer, limit))
        return is_greeting(answer) && answer.failed;
      if (sockets[0] >= 0) close(sockets[0]);
      sockets[0] = -1;
      std::this_thread::sleep_for(kRetryTime);
    }
    return false;
  }

  std::vector<std::string> ask(const std::string& own) {
    const std::string question = with_size(own);
    std::string failure;
    std::vector<std::string> texts(ranks);
    bool heard = write_all(sockets[0], question.data(), question.size(), limit) &&
                 read_text(sockets[0], failure, limit + kAnswerTime);
    if (heard && !failure.empty()) throw Error(ErrorKind::kComm, failure);
    for (std::string& text : texts)
      heard = heard && read_text(sockets[0], text, limit + kAnswerTime);
    if (!heard)
      throw Error(ErrorKind::kComm, "start-up: rank 0 at " + point.text() + " is gone or silent");
    return texts;
  }
};

Meeting::Meeting(int rank, int ranks, const MeetingPoint& point, double limit_s)
    : impl_(std::make_unique<Impl>(rank, ranks, point, limit_s)) {
  if (rank == 0)
    impl_->await_newcomers();
  else
    impl_->find_first();
}

Meeting::~Meeting() = default;

std::vector<std::string> Meeting::exchange(const std::string& text) {
  return impl_->rank == 0 ? impl_->gather(text) : impl_->ask(text);
}

std::vector<IpAddress> Meeting::own_addresses() const {
  std::vector<IpAddress> addresses;
  for (const int one : impl_->sockets)
    if (one >= 0) addresses.push_back(own_address(one));
  return addresses;
}

bool Meeting::share_failure(int rank, int ranks, const MeetingPoint& point,
                            double limit_s) noexcept {
  try {
    Impl own(rank, ranks, point, limit_s, true);
    if (rank > 0) return own.first_has_failed();
    own.send_newcomers_away();
  } catch (const Error&) {  // the port is taken
  }
  return rank == 0;
}

}  // namespace weft
