// The matchmaker of a job of processes: a thread of the first rank runs it and forwards what it
// tells the other ranks over TCP.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "kernels/check.h"
#include "parallel/bootstrap/frames.h"
#include "parallel/bootstrap/listener.h"
#include "parallel/bootstrap/poller.h"
#include "parallel/transport/matchmaker.h"

namespace weft {

namespace {

using Clock = std::chrono::steady_clock;

// The first rank of a failed job waits this long for ranks that have not left.
constexpr std::chrono::seconds kLeaveTimeout{5};

// One message of the protocol: a rank joins, then it sends requests; all others are the server's.
struct Frame {
  enum class Kind : uint8_t { kJoin, kRequest, kMatched, kWithdrawn, kStrayed, kEnded };
  Kind kind = Kind::kRequest;
  MatchRequest::Kind request{};
  bool moves = false, more = false;  // more: the next match is part of the same call
  int32_t rank = 0;
  uint64_t token = 0;  // the job's; a connection without it is dropped
  Offer offer{};
  double seconds = 0;
  char text[424] = {};
};

// One connected rank, on the first rank's side.
struct Peer final : MatchReceiver {
  Peer(int connection, Poller& waits, bool& failed)
      : socket(connection), poller(waits), ended_job(failed) {
    poller.watch(socket, this);
  }
  ~Peer() override { close(socket); }

  void matched(std::span<const Match> matches) override {
    for (const Match& match : matches)
      send_frame({.kind = Frame::Kind::kMatched,
                  .moves = match.moves,
                  .more = &match != &matches.back(),
                  .offer = {.number = match.number, .header = match.header}});
  }
  void withdrawn(uint64_t number) override {
    send_frame({.kind = Frame::Kind::kWithdrawn, .offer = {.number = number}});
  }
  void strayed() override { send_frame({.kind = Frame::Kind::kStrayed}); }
  void ended(const std::string& why) override {
    ended_job = true;
    Frame frame{.kind = Frame::Kind::kEnded};
    set_text(frame, why);
    send_frame(frame);
  }

  void send_frame(const Frame& frame) {
    unsent.append(reinterpret_cast<const char*>(&frame), sizeof frame);
    flush();
  }
  void flush() {
    const ssize_t gone = send(socket, unsent.data(), unsent.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (gone > 0) unsent.erase(0, static_cast<size_t>(gone));
    if (waits_to_write != unsent.empty()) return;
    waits_to_write = !unsent.empty();
    poller.watch_writes(socket, this, waits_to_write);
  }

  const int socket;
  Poller& poller;
  bool& ended_job;
  int rank = -1;
  bool left = false, waits_to_write = false;
  Frames<Frame> frames;
  std::string unsent;
};

class MatchServer {
 public:
  MatchServer(int ranks, const std::string& interfaces)
      : ranks_(ranks),
        listener_(open_listener(interfaces, ranks)),
        matchmaker_(make_matchmaker(ranks)) {
    for (const int socket : listener_.sockets) poller_.watch(socket, nullptr);
    thread_ = std::thread([this] { run(); });
  }

  ~MatchServer() {
    closing_ = true;
    thread_.join();
    close_listener(listener_);
  }

  const std::string& text() const { return listener_.text; }
  int64_t work() const { return matchmaker_->work(); }

 private:
  // Runs until every rank has joined and left. After a failure, or once the first rank closes, it
  // waits only for ranks that had joined; after both, for at most kLeaveTimeout.
  void run() {
    int gone = 0;
    Clock::time_point last_in_order = Clock::now();
    while (gone < ranks_ && !((ended_ || closing_) && peers_.empty())) {
      if (!(ended_ && closing_)) last_in_order = Clock::now();
      if (Clock::now() - last_in_order > kLeaveTimeout) return;
      for (void* owner : poller_.wait(100)) {
        if (!owner)
          accept_all();
        else if (!serve(*static_cast<Peer*>(owner)))
          gone += remove(*static_cast<Peer*>(owner));
      }
    }
  }

  void accept_all() {
    for (int one; (one = accept_connection(listener_)) >= 0;) {
      const auto peer = std::make_shared<Peer>(one, poller_, ended_);
      peers_.emplace(peer.get(), peer);
    }
  }

  // False where the connection has ended.
  bool serve(Peer& peer) {
    if (!peer.unsent.empty()) peer.flush();
    return peer.frames.read(peer.socket, MSG_DONTWAIT,
                            [&](const Frame& frame) { return take(peer, frame); });
  }

  // Returns the number of ranks that are gone with the connection: 1, or 0 for a stranger.
  int remove(Peer& peer) {
    const int rank = peer.rank;
    if (rank >= 0 && !peer.left) {
      ended_ = true;
      matchmaker_->leave(rank);
      matchmaker_->abort("rank " + std::to_string(rank) + " is gone");
    }
    peers_.erase(&peer);
    return rank >= 0;
  }

  bool take(Peer& peer, const Frame& frame) {
    if (frame.token != listener_.token || frame.rank < 0 || frame.rank >= ranks_) return false;
    if (peer.rank < 0) {
      if (frame.kind != Frame::Kind::kJoin) return false;
      peer.rank = frame.rank;
      matchmaker_->join(peer.rank, peer);
      return true;
    }
    using Kind = MatchRequest::Kind;
    if (frame.kind != Frame::Kind::kRequest || frame.offer.peer < 0 || frame.offer.peer >= ranks_)
      return false;
    peer.left |= frame.request == Kind::kLeave;
    ended_ |= frame.request == Kind::kLate || frame.request == Kind::kAbort;
    matchmaker_->ask(peer.rank, {frame.request, frame.offer, frame.seconds, frame.text});
    return true;
  }

  const int ranks_;
  const Listener listener_;
  const std::shared_ptr<Matchmaker> matchmaker_;
  bool ended_ = false;
  std::atomic<bool> closing_ = false;
  Poller poller_;
  std::unordered_map<Peer*, std::shared_ptr<Peer>> peers_;
  std::thread thread_;
};

class MatchClient final : public Matchmaker {
 public:
  MatchClient(int rank, std::unique_ptr<MatchServer> server, const Connection& connection)
      : rank_(rank),
        token_(connection.token),
        server_(std::move(server)),
        socket_(connection.socket) {}

  ~MatchClient() override {
    shutdown(socket_, SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
    close(socket_);
  }

  void join(int rank, MatchReceiver& receiver) override {
    CHECK(rank == rank_ && !thread_.joinable(), "rank", rank);
    receiver_ = &receiver;
    send_frame({.kind = Frame::Kind::kJoin});
    thread_ = std::thread([this] { run(); });
  }
  void ask(int, const MatchRequest& request) override {
    Frame frame{.request = request.kind, .offer = request.offer, .seconds = request.seconds};
    set_text(frame, request.text);
    send_frame(frame);
    if (request.kind != Kind::kLeave) return;
    shutdown(socket_, SHUT_WR);  // the server reads the last frame and closes
    thread_.join();
  }
  int64_t work() const override { return server_ ? server_->work() : 0; }

 private:
  void send_frame(Frame frame) {
    frame.rank = rank_;
    frame.token = token_;
    const std::lock_guard guard(lock_);  // frames must not interleave
    const char* data = reinterpret_cast<const char*>(&frame);
    for (size_t done = 0; done < sizeof frame;) {
      const ssize_t sent = send(socket_, data + done, sizeof frame - done, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent <= 0) return;  // the reading side reports that the server is gone
      done += static_cast<size_t>(sent);
    }
  }

  void run() {
    std::vector<Match> matches;
    frames_.read(socket_, 0, [&](const Frame& frame) {
      if (frame.kind == Frame::Kind::kMatched) {
        matches.push_back({frame.offer.number, frame.offer.header, frame.moves});
        if (!frame.more) receiver_->matched(matches);
        if (!frame.more) matches.clear();
      }
      if (frame.kind == Frame::Kind::kWithdrawn) receiver_->withdrawn(frame.offer.number);
      if (frame.kind == Frame::Kind::kStrayed) receiver_->strayed();
      if (frame.kind == Frame::Kind::kEnded) receiver_->ended(frame.text);
      return true;
    });
    receiver_->ended("rank 0, which runs the matchmaker, is gone");
  }

  const int rank_;
  const uint64_t token_;
  const std::unique_ptr<MatchServer> server_;  // on the first rank; closes after the client
  const int socket_;
  MatchReceiver* receiver_ = nullptr;
  std::mutex lock_;
  Frames<Frame> frames_;
  std::thread thread_;
};

}  // namespace

std::shared_ptr<Matchmaker> connect_matchmaker(
    int rank, int ranks, const std::string& interfaces, double seconds, std::string& note,
    const std::function<std::string(const std::string&)>& share) {
  CHECK(rank >= 0 && rank < ranks, "rank", rank, "of", ranks);
  std::unique_ptr<MatchServer> server;
  if (rank == 0) server = std::make_unique<MatchServer>(ranks, interfaces);
  const Connection connection =
      connect_to_listener(share(server ? server->text() + " " + note : ""), seconds);
  note = connection.rest;
  return std::make_shared<MatchClient>(rank, std::move(server), connection);
}

}  // namespace weft
