// The board of a job of processes: the first rank's thread keeps it and plays the others'
// listeners.
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/check.h"
#include "parallel/message_board.h"

namespace weft {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kFarewell{5};  // of a failed job: for those that have not left

enum class Word : int32_t {
  kJoin,
  kLeave,
  kOffer,
  kWithdraw,
  kWaiting,
  kReady,
  kLate,
  kAbort,  // of a rank
  kMatched,
  kWithdrawn,
  kEnded  // of the board
};

// One word of the conversation. Both ends are the same program on the same kind of machine.
struct Frame {
  Word word = Word::kJoin;
  int32_t rank = 0;
  uint64_t token = 0;  // of the job: a stranger's connection is dropped
  Offer offer;         // its number wherever one is meant
  double seconds = 0;
  bool moves = false, more = false;  // more: the next match belongs to this one
  char text[424] = {};
};

[[noreturn]] void socket_error(const std::string& call) {
  throw Error(ErrorKind::kComm, call + ": " + std::strerror(errno));
}

bool lists(const std::string& names, const std::string& name) {
  return ("," + names + ",").find("," + name + ",") != std::string::npos;
}

// The first address of the interfaces; of any that others can reach where it has none of them; the
// loopback where there is no other.
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

void no_delay(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// Frames out of what has been read of a socket.
struct Frames {
  char buffer[sizeof(Frame)];
  size_t filled = 0;

  // Gives every whole frame to `take` until there is none; false where the connection has ended.
  template <class Take>
  bool read(int socket, int flags, Take&& take) {
    for (;;) {
      const ssize_t got = recv(socket, buffer + filled, sizeof buffer - filled, flags);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
      if (got <= 0) return false;
      filled += static_cast<size_t>(got);
      if (filled < sizeof buffer) continue;
      filled = 0;
      Frame frame;
      std::memcpy(static_cast<void*>(&frame), buffer, sizeof frame);
      frame.text[sizeof frame.text - 1] = 0;
      if (!take(frame)) return false;
    }
  }
};

// A rank as the first rank's thread sees it.
struct Guest final : BoardListener {
  explicit Guest(int connection) : socket(connection) { no_delay(socket); }
  ~Guest() override { close(socket); }

  void matched(std::span<const Match> matches) override {
    for (size_t i = 0; i < matches.size(); ++i) {
      Frame frame;
      frame.word = Word::kMatched;
      frame.offer.number = matches[i].number;
      frame.offer.header = matches[i].header;
      frame.moves = matches[i].moves;
      frame.more = i + 1 < matches.size();
      say(frame);
    }
  }
  void withdrawn(uint64_t number) override {
    Frame frame;
    frame.word = Word::kWithdrawn;
    frame.offer.number = number;
    say(frame);
  }
  void ended(const std::string& why) override {
    Frame frame;
    frame.word = Word::kEnded;
    told_end = true;
    std::snprintf(frame.text, sizeof frame.text, "%s", why.c_str());
    say(frame);
  }

  void say(const Frame& frame) {
    unsent.append(reinterpret_cast<const char*>(&frame), sizeof frame);
    flush();
  }
  void flush() {
    const ssize_t gone = send(socket, unsent.data(), unsent.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (gone > 0) unsent.erase(0, static_cast<size_t>(gone));
  }

  const int socket;
  int rank = -1;
  bool left = false, dead = false, told_end = false;
  Frames frames;
  std::string unsent;
};

class BoardHost {
 public:
  BoardHost(int ranks, const std::string& interfaces, uint64_t token)
      : ranks_(ranks), token_(token), board_(make_message_board(ranks)) {
    door_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr = listening_address(interfaces);
    socklen_t length = sizeof at;
    if (door_ < 0 || bind(door_, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0 ||
        listen(door_, ranks) != 0 ||
        getsockname(door_, reinterpret_cast<sockaddr*>(&at), &length) != 0)
      socket_error("the message board's socket");
    char host[INET_ADDRSTRLEN] = {};
    inet_ntop(AF_INET, &at.sin_addr, host, sizeof host);
    address_ = std::string(host) + " " + std::to_string(ntohs(at.sin_port));
    thread_ = std::thread([this] { run(); });
  }

  ~BoardHost() {
    closing_ = true;
    thread_.join();
    close(door_);
  }

  const std::string& address() const { return address_; }

 private:
  // Until every rank has come and gone; where the job has failed or its first rank goes, until
  // those that came are gone, and where both hold no longer than kFarewell.
  void run() {
    int gone = 0;
    Clock::time_point in_order = Clock::now();
    while (gone < ranks_ && !((ended_ || closing_) && guests_.empty())) {
      for (const Guest& guest : guests_) ended_ = ended_ || guest.told_end;
      if (!(ended_ && closing_)) in_order = Clock::now();
      if (Clock::now() - in_order > kFarewell) return;
      std::vector<pollfd> watched{{door_, POLLIN, 0}};
      for (const Guest& guest : guests_)
        watched.push_back({guest.socket,
                           static_cast<short>(guest.unsent.empty() ? POLLIN : POLLIN | POLLOUT),
                           0});
      poll(watched.data(), watched.size(), 100);
      for (int one; (one = accept4(door_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;)
        guests_.emplace_back(one);
      for (Guest& guest : guests_) {
        if (!guest.unsent.empty()) guest.flush();
        if (guest.frames.read(guest.socket, MSG_DONTWAIT,
                              [&](const Frame& frame) { return take(guest, frame); }))
          continue;
        guest.dead = true;
        if (guest.rank < 0) continue;
        if (!guest.left) {
          ended_ = true;
          board_->leave(guest.rank);
          board_->abort("rank " + std::to_string(guest.rank) + " is gone");
        }
        ++gone;
      }
      guests_.remove_if([](const Guest& guest) { return guest.dead; });
    }
  }

  bool take(Guest& guest, const Frame& frame) {
    if (frame.token != token_ || frame.rank < 0 || frame.rank >= ranks_) return false;
    if (guest.rank < 0) {
      if (frame.word != Word::kJoin) return false;
      guest.rank = frame.rank;
      board_->join(guest.rank, guest);
      return true;
    }
    const uint64_t number = frame.offer.number;
    switch (frame.word) {
      case Word::kOffer:
        if (frame.offer.peer < 0 || frame.offer.peer >= ranks_) return false;
        board_->offer(guest.rank, frame.offer);
        break;
      case Word::kWithdraw:
        board_->withdraw(guest.rank, number);
        break;
      case Word::kWaiting:
        board_->waiting(guest.rank, number);
        break;
      case Word::kReady:
        board_->ready(guest.rank);
        break;
      case Word::kLate:
        board_->late(guest.rank, frame.seconds);
        ended_ = true;
        break;
      case Word::kAbort:
        board_->abort(frame.text);
        ended_ = true;
        break;
      case Word::kLeave:
        guest.left = true;
        board_->leave(guest.rank);
        break;
      default:
        return false;
    }
    return true;
  }

  const int ranks_;
  const uint64_t token_;
  const std::shared_ptr<MessageBoard> board_;
  int door_ = -1;
  std::string address_;
  bool ended_ = false;
  std::atomic<bool> closing_ = false;
  std::list<Guest> guests_;
  std::thread thread_;
};

class BoardLink final : public MessageBoard {
 public:
  BoardLink(int rank, uint64_t token, std::unique_ptr<BoardHost> host, sockaddr_in to,
            double seconds)
      : rank_(rank), token_(token), host_(std::move(host)) {
    socket_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const timeval limit{static_cast<time_t>(std::max(1.0, seconds)), 0};
    setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);  // of connect, too
    if (socket_ < 0 || connect(socket_, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) {
      const int error = errno;
      close(socket_);
      errno = error;
      socket_error("connecting to rank 0's message board");
    }
    no_delay(socket_);
  }

  ~BoardLink() override {
    shutdown(socket_, SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
    close(socket_);
  }

  void join(int rank, BoardListener& listener) override {
    CHECK(rank == rank_ && !thread_.joinable(), "rank", rank);
    listener_ = &listener;
    say(Word::kJoin);
    thread_ = std::thread([this] { run(); });
  }
  void leave(int) override {
    say(Word::kLeave);
    shutdown(socket_, SHUT_WR);  // the board reads the last word and closes
    thread_.join();
  }
  void offer(int, const Offer& offer) override {
    Frame frame;
    frame.offer = offer;
    say(Word::kOffer, frame);
  }
  void withdraw(int, uint64_t number) override { say_number(Word::kWithdraw, number); }
  void waiting(int, uint64_t number) override { say_number(Word::kWaiting, number); }
  void ready(int) override { say(Word::kReady); }
  void late(int, double seconds) override {
    Frame frame;
    frame.seconds = seconds;
    say(Word::kLate, frame);
  }
  void abort(const std::string& why) override {
    Frame frame;
    std::snprintf(frame.text, sizeof frame.text, "%s", why.c_str());
    say(Word::kAbort, frame);
  }

 private:
  void say(Word word, Frame frame = {}) {
    frame.word = word;
    frame.rank = rank_;
    frame.token = token_;
    const std::lock_guard guard(lock_);  // whole frames
    const char* data = reinterpret_cast<const char*>(&frame);
    for (size_t done = 0; done < sizeof frame;) {
      const ssize_t sent = send(socket_, data + done, sizeof frame - done, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent <= 0) return;  // the reading side says that the board is gone
      done += static_cast<size_t>(sent);
    }
  }
  void say_number(Word word, uint64_t number) {
    Frame frame;
    frame.offer.number = number;
    say(word, frame);
  }

  void run() {
    std::vector<Match> matches;
    frames_.read(socket_, 0, [&](const Frame& frame) {
      if (frame.word == Word::kMatched) {
        matches.push_back({frame.offer.number, frame.offer.header, frame.moves});
        if (!frame.more) listener_->matched(matches);
        if (!frame.more) matches.clear();
      } else if (frame.word == Word::kWithdrawn) {
        listener_->withdrawn(frame.offer.number);
      } else if (frame.word == Word::kEnded) {
        listener_->ended(frame.text);
      }
      return true;
    });
    listener_->ended("rank 0, which keeps the message board, is gone");
  }

  const int rank_;
  const uint64_t token_;
  const std::unique_ptr<BoardHost> host_;  // of the first rank; ends after the link
  int socket_ = -1;
  BoardListener* listener_ = nullptr;
  std::mutex lock_;
  Frames frames_;
  std::thread thread_;
};

}  // namespace

std::shared_ptr<MessageBoard> connect_message_board(
    int rank, int ranks, const std::string& interfaces, double seconds, std::string& note,
    const std::function<std::string(const std::string&)>& share) {
  CHECK(rank >= 0 && rank < ranks, "rank", rank, "of", ranks);
  std::unique_ptr<BoardHost> host;
  std::string text;
  if (rank == 0) {
    uint64_t token = 0;
    if (getrandom(&token, sizeof token, 0) != sizeof token) socket_error("getrandom");
    host = std::make_unique<BoardHost>(ranks, interfaces, token);
    text = host->address() + " " + std::to_string(token) + " " + note;
  }
  text = share(text);
  char name[64] = {};
  unsigned port = 0;
  unsigned long long token = 0;
  int length = 0;
  sockaddr_in to{};
  to.sin_family = AF_INET;
  if (std::sscanf(text.c_str(), "%63s %u %llu %n", name, &port, &token, &length) != 3 ||
      inet_pton(AF_INET, name, &to.sin_addr) != 1)
    throw Error(ErrorKind::kComm, "rank 0's text '" + text + "' names no message board");
  to.sin_port = htons(static_cast<uint16_t>(port));
  note = text.substr(static_cast<size_t>(length));
  return std::make_shared<BoardLink>(rank, token, std::move(host), to, seconds);
}

}  // namespace weft
