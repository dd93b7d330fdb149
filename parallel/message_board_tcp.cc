// The board of a job of processes: the first rank's thread keeps it and plays the others'
// listeners.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
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
#include "parallel/door.h"
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
  BoardHost(int ranks, const std::string& interfaces)
      : ranks_(ranks), door_(open_door(interfaces, ranks)), board_(make_message_board(ranks)) {
    thread_ = std::thread([this] { run(); });
  }

  ~BoardHost() {
    closing_ = true;
    thread_.join();
    close(door_.socket);
  }

  const std::string& text() const { return door_.text; }

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
      std::vector<pollfd> watched{{door_.socket, POLLIN, 0}};
      for (const Guest& guest : guests_)
        watched.push_back({guest.socket,
                           static_cast<short>(guest.unsent.empty() ? POLLIN : POLLIN | POLLOUT),
                           0});
      poll(watched.data(), watched.size(), 100);
      for (int one; (one = accept4(door_.socket, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;)
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
    if (frame.token != door_.token || frame.rank < 0 || frame.rank >= ranks_) return false;
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
  const Door door_;
  const std::shared_ptr<MessageBoard> board_;
  bool ended_ = false;
  std::atomic<bool> closing_ = false;
  std::list<Guest> guests_;
  std::thread thread_;
};

class BoardLink final : public MessageBoard {
 public:
  BoardLink(int rank, std::unique_ptr<BoardHost> host, const Knock& knocked)
      : rank_(rank), token_(knocked.token), host_(std::move(host)), socket_(knocked.socket) {}

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
  const int socket_;
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
  if (rank == 0) host = std::make_unique<BoardHost>(ranks, interfaces);
  const Knock knocked = knock(share(host ? host->text() + " " + note : ""), seconds);
  note = knocked.rest;
  return std::make_shared<BoardLink>(rank, std::move(host), knocked);
}

}  // namespace weft
