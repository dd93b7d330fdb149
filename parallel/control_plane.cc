#include "parallel/control_plane.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "kernels/check.h"
#include "parallel/door.h"

namespace weft {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPollMs = 20;

double since(Clock::time_point then) {
  return std::chrono::duration<double>(Clock::now() - then).count();
}

std::string seconds_text(const char* format, double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, format, seconds);
  return std::string(text) + " s";
}

enum class Word : int32_t { kHello, kBeat, kFailure, kReady, kAllReady, kFarewell };

struct Record {
  Word word = Word::kBeat;
  int32_t rank = 0;
  uint64_t token = 0;  // of the job: a stranger's connection is dropped
  char text[496] = {};
};

// One connection with what has been read of the next record.
struct Line {
  int socket = -1;
  int rank = -1;  // -1 until its hello
  char buffer[sizeof(Record)] = {};
  size_t filled = 0;
  Clock::time_point sign = Clock::now();
  bool suspected = false, ready = false, left = false;
  std::string last;  // operation, as its beat told
};

}  // namespace

struct ControlPlane::Impl {
  int rank, size;
  ControlReports reports;
  ControlSettings settings;
  uint64_t token = 0;
  int listener = -1;
  Clock::time_point begun = Clock::now();
  bool complete = false;    // everybody has said hello
  std::vector<Line> lines;  // the first rank's: everybody; another's: the first rank
  std::mutex lock;
  std::string failed, to_fail;            // the line; one that waits to be told
  bool ready = false, all_ready = false;  // for the end, under the lock
  std::condition_variable changed;
  std::atomic<bool> leaving{false};
  std::thread thread;

  void run();
  void beat();
  void read(Line& line);
  void take(Line& line, const Record& record);
  void await();
  void look_for_the_end();
  void end_is_reached();
  void judge();
  void gone(Line& line);
  void end(const std::string& why);
  void tell(const Record& record);
  Record record(Word word, const std::string& text) const;
};

Record ControlPlane::Impl::record(Word word, const std::string& text) const {
  Record out;
  out.word = word;
  out.rank = rank;
  out.token = token;
  std::snprintf(out.text, sizeof out.text, "%s", text.c_str());
  return out;
}

void ControlPlane::Impl::tell(const Record& out) {
  for (Line& line : lines)  // small records into an empty buffer: a full one is a dead peer's
    if (line.socket >= 0 && !line.left)
      (void)send(line.socket, &out, sizeof out, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void ControlPlane::Impl::end(const std::string& why) {
  {
    const std::lock_guard guard(lock);
    if (!failed.empty()) return;
    failed = why;
    changed.notify_all();
  }
  tell(record(Word::kFailure, why));
  reports.failure(why);
}

void ControlPlane::Impl::gone(Line& line) {
  close(line.socket);
  line.socket = -1;
  if (line.left || line.rank < 0 || leaving) return;
  end("rank " + std::to_string(line.rank) + " is gone; its last sign was " +
      (line.last.empty() ? "none" : line.last));
}

void ControlPlane::Impl::take(Line& line, const Record& in) {
  if (in.token != token) {
    close(line.socket);
    line.socket = -1;
    return;
  }
  line.rank = in.rank;
  line.sign = Clock::now();
  line.suspected = false;
  const std::string text(in.text, strnlen(in.text, sizeof in.text));
  if (in.word == Word::kBeat) line.last = text;
  if (in.word == Word::kReady) line.ready = true;
  if (in.word == Word::kAllReady) end_is_reached();
  if (in.word == Word::kFarewell) line.left = true;
  if (in.word == Word::kFailure) end(text);
}

void ControlPlane::Impl::read(Line& line) {
  while (line.socket >= 0) {
    const ssize_t got =
        recv(line.socket, line.buffer + line.filled, sizeof(Record) - line.filled, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (got <= 0) return gone(line);
    line.filled += static_cast<size_t>(got);
    if (line.filled < sizeof(Record)) continue;
    line.filled = 0;
    Record in;
    std::memcpy(&in, line.buffer, sizeof in);
    take(line, in);
  }
}

// The first rank misses those that have not said hello.
void ControlPlane::Impl::await() {
  std::set<int> missing;
  for (int peer = 1; peer < size; ++peer) missing.insert(peer);
  for (const Line& line : lines) missing.erase(line.rank);
  if (missing.empty()) {
    complete = true;
  } else if (since(begun) > settings.startup_s) {
    std::string names;
    for (int peer : missing) names += (names.empty() ? "" : ", ") + std::to_string(peer);
    end("start-up: no hello from rank " + names + " within " +
        seconds_text("%g", settings.startup_s));
  }
}

// A rank says once that it is ready; the first one, when all are.
void ControlPlane::Impl::look_for_the_end() {
  {
    const std::lock_guard guard(lock);
    if (!ready || all_ready) return;
  }
  if (rank != 0) {
    if (!lines[0].ready) tell(record(Word::kReady, ""));
    lines[0].ready = true;  // told
    return;
  }
  int count = 1;
  for (const Line& line : lines) count += line.ready;
  if (count < size) return;
  tell(record(Word::kAllReady, ""));
  end_is_reached();
}

void ControlPlane::Impl::end_is_reached() {
  const std::lock_guard guard(lock);
  all_ready = true;
  changed.notify_all();
}

void ControlPlane::Impl::judge() {
  if (rank == 0 && !complete) await();
  for (Line& line : lines) {
    if (line.socket < 0 || line.left || line.rank < 0) continue;
    const double silence = since(line.sign);
    const std::string who = "rank " + std::to_string(line.rank) + " has given no sign for " +
                            seconds_text("%.1f", silence) + "; its last was " +
                            (line.last.empty() ? "none" : line.last);
    if (silence > settings.dead_s) {
      end(who);
    } else if (silence > settings.suspect_s && !line.suspected) {
      line.suspected = true;
      if (rank == 0 && reports.warning) reports.warning(who);
    }
  }
}

void ControlPlane::Impl::run() {
  Clock::time_point beaten{}, looked = Clock::now(), failed_at{};
  while (!leaving) {
    std::vector<pollfd> watched;
    if (listener >= 0) watched.push_back({listener, POLLIN, 0});
    for (const Line& line : lines)
      if (line.socket >= 0) watched.push_back({line.socket, POLLIN, 0});
    poll(watched.data(), watched.size(), kPollMs);
    if (listener >= 0) {
      for (int one; (one = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) {
        Line line;
        line.socket = one;
        lines.push_back(line);
      }
    }
    for (Line& line : lines) read(line);
    // A rank that was stopped itself has heard nothing meanwhile: that is nobody's fault.
    if (since(looked) > 1)
      for (Line& line : lines) line.sign = Clock::now();
    looked = Clock::now();
    std::string told;
    {
      const std::lock_guard guard(lock);
      told.swap(to_fail);
    }
    if (!told.empty()) end(told);
    if (failed.empty()) judge();
    look_for_the_end();
    if (since(beaten) >= settings.beat_s) {
      beaten = Clock::now();
      tell(record(Word::kBeat, reports.last_operation ? reports.last_operation() : ""));
    }
    if (failed.empty()) continue;
    if (failed_at == Clock::time_point{}) failed_at = Clock::now();
    if (since(failed_at) > settings.grace_s && reports.stuck) reports.stuck(failed);
  }
}

ControlPlane::ControlPlane(int rank, int size, const std::string& interfaces,
                           const std::function<std::string(const std::string&)>& share,
                           ControlReports reports, const ControlSettings& settings)
    : impl_(std::make_unique<Impl>()) {
  impl_->rank = rank;
  impl_->size = size;
  impl_->reports = std::move(reports);
  impl_->settings = settings;
  Door door;
  if (rank == 0) door = open_door(interfaces, size);
  impl_->listener = door.socket;
  impl_->token = door.token;
  const std::string text = share(door.text);
  if (rank != 0) {
    const Knock knocked = knock(text, settings.startup_s);
    impl_->token = knocked.token;
    Line line;
    line.rank = 0;
    line.socket = knocked.socket;
    impl_->lines.push_back(line);
    impl_->tell(impl_->record(Word::kHello, ""));
  }
  impl_->thread = std::thread([this] { impl_->run(); });
}

ControlPlane::~ControlPlane() {
  impl_->leaving = true;
  impl_->thread.join();
  if (impl_->failed.empty()) impl_->tell(impl_->record(Word::kFarewell, ""));
  for (Line& line : impl_->lines)
    if (line.socket >= 0) close(line.socket);
  if (impl_->listener >= 0) close(impl_->listener);
}

void ControlPlane::await_all() {
  std::unique_lock guard(impl_->lock);
  impl_->ready = true;
  impl_->changed.wait(guard, [this] { return impl_->all_ready || !impl_->failed.empty(); });
  if (!impl_->failed.empty()) throw Error(ErrorKind::kComm, impl_->failed);
}

void ControlPlane::fail(const std::string& line) {
  const std::lock_guard guard(impl_->lock);
  if (impl_->to_fail.empty()) impl_->to_fail = line;
}

}  // namespace weft
