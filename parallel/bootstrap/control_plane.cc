#include "parallel/bootstrap/control_plane.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "kernels/check.h"
#include "parallel/bootstrap/frames.h"
#include "parallel/bootstrap/listener.h"
#include "parallel/bootstrap/poller.h"

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

constexpr int kFirstClockSamples = 8;  // before the constructor returns

enum class Opcode : int32_t {
  kHello,
  kBeat,
  kClock,
  kFailure,
  kReady,
  kAllReady,
  kTake,    // asks for the next number of a series
  kNumber,  // answers
  kGoodbye
};

struct ControlMessage {
  Opcode opcode = Opcode::kBeat;
  int32_t rank = 0;
  uint64_t token = 0;   // the job's; a connection without it is dropped
  int64_t sent_ns = 0;  // by the sender's clock
  int64_t echo_ns = 0;  // kClock: sent_ns of the beat it answers
  int64_t number = 0;   // kTake: the series
  char text[984] = {};
};

struct PeerConnection {
  int socket = -1;
  int rank = -1;  // -1 until its hello
  Frames<ControlMessage> frames;
  Clock::time_point heard = Clock::now();
  bool suspected = false, ready = false, left = false;
  std::string last;  // its last operation, from its heartbeat
};

}  // namespace

ControlSettings settings_for_timeout(double seconds) {
  ControlSettings settings;
  if (seconds > 0) {
    settings.suspect_s *= seconds / settings.dead_s;
    settings.dead_s = seconds;
  } else {
    settings.dead_s = std::numeric_limits<double>::infinity();
  }
  return settings;
}

struct ControlPlane::Impl {
  int rank, size;
  ControlReports reports;
  ControlSettings settings;
  uint64_t token = 0;
  Listener listener;
  Clock::time_point started = Clock::now();
  int heard_of = 0, ready_peers = 0;  // ranks that have said hello, and that they are ready
  Poller poller;
  std::deque<PeerConnection>
      links;  // the first rank has one to every other, the others to the first
  std::atomic<int64_t> messages{0}, looks{0};
  std::mutex lock;
  // Guarded by the lock: the error the job ended with; one that fail() asked to end it with.
  std::string failed, to_fail;
  bool ready = false, all_ready = false;  // guarded by the lock; see await_all()
  ClockOffset offset;                     // guarded by the lock; to the first rank's clock
  std::map<int64_t, int64_t> numbers;     // guarded by the lock; of the first rank, by series
  // Guarded by the lock: of a call of take_number() on another rank.
  std::optional<int64_t> wanted_series, taken;
  std::condition_variable changed;
  std::atomic<bool> leaving{false};
  std::thread thread;

  ControlMessage make_message(Opcode opcode, const std::string& text) const {
    ControlMessage out;
    out.opcode = opcode;
    out.rank = rank;
    out.token = token;
    out.sent_ns = settings.clock_ns();
    set_text(out, text);
    return out;
  }

  void send_to_all(Opcode opcode, const std::string& text = {}) {
    const ControlMessage out = make_message(opcode, text);
    for (PeerConnection& link : links)  // never blocks: only a dead peer's buffer is full
      if (link.socket >= 0 && !link.left)
        (void)send(link.socket, &out, sizeof out, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  void answer_clock(const PeerConnection& link, const ControlMessage& beat) {
    ControlMessage answer = make_message(Opcode::kClock, "");
    answer.echo_ns = beat.sent_ns;
    (void)send(link.socket, &answer, sizeof answer, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  int64_t next_number(int64_t series) {
    const std::lock_guard guard(lock);
    return numbers[series]++;
  }

  void answer_number(const PeerConnection& link, int64_t series) {
    ControlMessage answer = make_message(Opcode::kNumber, "");
    answer.number = next_number(series);
    (void)send(link.socket, &answer, sizeof answer, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  void learn_number(int64_t number) {
    const std::lock_guard guard(lock);
    taken = number;
    changed.notify_all();
  }

  void ask_number() {
    std::optional<int64_t> series;
    {
      const std::lock_guard guard(lock);
      series.swap(wanted_series);
    }
    if (!series) return;
    ControlMessage out = make_message(Opcode::kTake, "");
    out.number = *series;
    (void)send(links[0].socket, &out, sizeof out, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  void learn_clock(const ControlMessage& answer) {
    const int64_t now = settings.clock_ns();
    bool more = false;
    {
      const std::lock_guard guard(lock);
      offset.add(answer.echo_ns, answer.sent_ns, now);
      more = offset.samples() < kFirstClockSamples;
      changed.notify_all();
    }
    if (more) send_beat();
  }

  void send_beat() {
    send_to_all(Opcode::kBeat, reports.last_operation ? reports.last_operation() : "");
  }

  void fail_job(const std::string& why) {
    {
      const std::lock_guard guard(lock);
      if (!failed.empty()) return;
      failed = why;
      changed.notify_all();
    }
    send_to_all(Opcode::kFailure, why);
    reports.failure(why);
  }

  void lost(PeerConnection& link) {
    close(link.socket);
    link.socket = -1;
    if (link.left || link.rank < 0 || leaving) return;
    fail_job("rank " + std::to_string(link.rank) + " is gone; its last sign was " +
             (link.last.empty() ? "none" : link.last));
  }

  // False for a message of a stranger.
  bool handle(PeerConnection& link, const ControlMessage& in) {
    if (in.token != token || in.rank < 0 || in.rank >= size) return false;
    ++messages;
    if (link.rank < 0) ++heard_of;
    link.rank = in.rank;
    link.heard = Clock::now();
    link.suspected = false;
    if (in.opcode == Opcode::kBeat) link.last = in.text;
    if (in.opcode == Opcode::kBeat && rank == 0) answer_clock(link, in);
    if (in.opcode == Opcode::kClock) learn_clock(in);
    if (in.opcode == Opcode::kReady && !link.ready) {
      link.ready = true;
      ++ready_peers;
    }
    if (in.opcode == Opcode::kAllReady) set_all_ready();
    if (in.opcode == Opcode::kTake && rank == 0) answer_number(link, in.number);
    if (in.opcode == Opcode::kNumber) learn_number(in.number);
    if (in.opcode == Opcode::kGoodbye) link.left = true;
    if (in.opcode == Opcode::kFailure) fail_job(in.text);
    return true;
  }

  void read(PeerConnection& link) {
    ++looks;
    const auto take = [&](const ControlMessage& in) { return handle(link, in); };
    if (!link.frames.read(link.socket, MSG_DONTWAIT, take)) lost(link);
  }

  // The first rank fails the job where a rank has not said hello in time.
  void check_hellos() {
    if (heard_of == size - 1 || since(started) < settings.startup_s) return;
    std::vector<bool> heard(size);
    for (const PeerConnection& link : links)
      if (link.rank >= 0) heard[link.rank] = true;
    std::string names;
    for (int peer = 1; peer < size; ++peer)
      if (!heard[peer]) names += (names.empty() ? "" : ", ") + std::to_string(peer);
    fail_job("start-up: no hello from rank " + names + " within " +
             seconds_text("%g", settings.startup_s));
  }

  // A rank tells the first one once that it is ready; the first one tells all when every rank is.
  void check_all_ready() {
    {
      const std::lock_guard guard(lock);
      if (!ready || all_ready) return;
    }
    if (rank != 0) {
      if (!links[0].ready) send_to_all(Opcode::kReady);
      links[0].ready = true;  // has been told
      return;
    }
    if (ready_peers + 1 < size) return;
    send_to_all(Opcode::kAllReady);
    set_all_ready();
  }

  void set_all_ready() {
    const std::lock_guard guard(lock);
    all_ready = true;
    changed.notify_all();
  }

  void check_silence() {
    if (rank == 0) check_hellos();
    for (PeerConnection& link : links) {
      if (link.socket < 0 || link.left || link.rank < 0) continue;
      const double silence = since(link.heard);
      if (silence <= std::min(settings.suspect_s, settings.dead_s)) continue;
      const std::string who = "rank " + std::to_string(link.rank) + " has given no sign for " +
                              seconds_text("%.1f", silence) + "; its last was " +
                              (link.last.empty() ? "none" : link.last);
      if (silence > settings.dead_s) {
        fail_job(who);
      } else if (silence > settings.suspect_s && !link.suspected) {
        link.suspected = true;
        if (rank == 0 && reports.warning) reports.warning(who);
      }
    }
  }

  void add_link(int socket, int peer) {
    PeerConnection& link = links.emplace_back();
    link.socket = socket;
    link.rank = peer;
    poller.watch(socket, &link);
  }

  void accept_all() {
    for (int one; (one = accept_connection(listener)) >= 0;) add_link(one, -1);
  }

  void run() {
    Clock::time_point last_beat{}, looked = Clock::now(), last_check{}, failed_at{};
    while (!leaving) {
      for (void* owner : poller.wait(kPollMs)) {
        if (owner)
          read(*static_cast<PeerConnection*>(owner));
        else
          accept_all();
      }
      // After a pause of this very process the silence of the others proves nothing.
      if (since(looked) > 1)
        for (PeerConnection& link : links) link.heard = Clock::now();
      looked = Clock::now();
      std::string asked;
      {
        const std::lock_guard guard(lock);
        asked.swap(to_fail);
      }
      if (!asked.empty()) fail_job(asked);
      if (failed.empty() && since(last_check) * 1000 >= kPollMs) {
        last_check = Clock::now();
        check_silence();
      }
      check_all_ready();
      ask_number();
      if (since(last_beat) >= settings.beat_s) {
        last_beat = Clock::now();
        send_beat();
      }
      if (failed.empty()) continue;
      if (failed_at == Clock::time_point{}) failed_at = Clock::now();
      if (since(failed_at) > settings.grace_s && reports.stuck) reports.stuck(failed);
    }
  }
};

ControlPlane::ControlPlane(int rank, int size, const std::string& interfaces,
                           const std::function<std::string(const std::string&)>& share,
                           ControlReports reports, const ControlSettings& settings)
    : impl_(std::make_unique<Impl>()) {
  impl_->rank = rank;
  impl_->size = size;
  impl_->reports = std::move(reports);
  impl_->settings = settings;
  if (rank == 0) impl_->listener = open_listener(interfaces, size);
  for (const int socket : impl_->listener.sockets) impl_->poller.watch(socket, nullptr);
  impl_->token = impl_->listener.token;
  const std::string text = share(impl_->listener.text);
  if (rank != 0) {
    const Connection connection = connect_to_listener(text, settings.startup_s);
    impl_->token = connection.token;
    impl_->add_link(connection.socket, 0);
    impl_->send_to_all(Opcode::kHello);
  }
  impl_->thread = std::thread([this] { impl_->run(); });
  if (rank == 0) return;
  std::unique_lock guard(impl_->lock);
  impl_->changed.wait_for(guard, std::chrono::duration<double>(settings.startup_s), [this] {
    return impl_->offset.samples() >= kFirstClockSamples || !impl_->failed.empty();
  });
}

ControlPlane::~ControlPlane() {
  impl_->leaving = true;
  impl_->thread.join();
  if (!impl_->to_fail.empty()) impl_->fail_job(impl_->to_fail);
  if (impl_->failed.empty()) impl_->send_to_all(Opcode::kGoodbye);
  for (PeerConnection& link : impl_->links)
    if (link.socket >= 0) close(link.socket);
  close_listener(impl_->listener);
}

void ControlPlane::await_all() {
  std::unique_lock guard(impl_->lock);
  impl_->ready = true;
  impl_->changed.wait(guard, [this] { return impl_->all_ready || !impl_->failed.empty(); });
  if (!impl_->failed.empty()) throw Error(ErrorKind::kComm, impl_->failed);
}

int64_t ControlPlane::take_number(int series) {
  if (impl_->rank == 0) return impl_->next_number(series);
  std::unique_lock guard(impl_->lock);
  impl_->taken.reset();
  impl_->wanted_series = series;
  impl_->changed.wait(guard, [this] { return impl_->taken || !impl_->failed.empty(); });
  if (!impl_->failed.empty()) throw Error(ErrorKind::kComm, impl_->failed);
  return *impl_->taken;
}

int64_t ControlPlane::job_clock_ns() const {
  const std::lock_guard guard(impl_->lock);
  return impl_->settings.clock_ns() + impl_->offset.ns();
}

ControlPlane::Work ControlPlane::work() const { return {impl_->messages, impl_->looks}; }

void ControlPlane::fail(const std::string& line) {
  const std::lock_guard guard(impl_->lock);
  if (impl_->to_fail.empty()) impl_->to_fail = line;
}

}  // namespace weft
