#include "parallel/bootstrap/startup_watch.h"

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

namespace weft {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr auto kBeat = std::chrono::milliseconds(200);
constexpr auto kStale = std::chrono::seconds(2);

std::string sign_of(const std::string& folder, int rank) {
  return folder + "/weft-rank-" + std::to_string(rank);
}
// A rank whose start-up is over leaves this file, and its signs of life may end.
std::string started_of(const std::string& folder, int rank) {
  return sign_of(folder, rank) + "-started";
}

}  // namespace

struct StartupWatch::Impl {
  std::string folder;
  int rank, ranks, ranks_here;
  double limit_s;
  std::function<void(const std::string&)> late;
  std::mutex lock;
  std::condition_variable ended;
  bool over = false;
  std::thread thread;

  // Names the ranks that have not begun or give no sign of life.
  std::string missing() const {
    std::string never, silent;
    int seen = 0;
    for (int other = 0; other < ranks; ++other) {
      std::error_code error;
      if (fs::exists(started_of(folder, other), error)) {
        ++seen;
        continue;
      }
      const auto written = fs::last_write_time(sign_of(folder, other), error);
      if (!error) ++seen;
      if (!error && fs::file_time_type::clock::now() - written < kStale) continue;
      std::string& list = error ? never : silent;
      list += (list.empty() ? "rank " : ", rank ") + std::to_string(other);
    }
    std::string line;
    if (ranks_here == ranks && !never.empty())
      line += "; not begun: " + never;
    else if (ranks_here < ranks)
      line += "; " + std::to_string(seen) + " of the " + std::to_string(ranks_here) +
              " ranks of this host have begun";
    if (!silent.empty()) line += "; begun, but no sign of life: " + silent;
    return line.empty() ? "; all ranks of this host are alive" : line;
  }

  void run() {
    const auto deadline = Clock::now() + std::chrono::duration<double>(limit_s);
    std::unique_lock guard(lock);
    while (!over) {
      if (!folder.empty()) std::ofstream(sign_of(folder, rank)) << "starting\n";
      if (Clock::now() >= deadline) {
        char seconds[32];
        std::snprintf(seconds, sizeof seconds, "%g", limit_s);
        const std::string line = "start-up: not all of the " + std::to_string(ranks) +
                                 " ranks came together within " + seconds + " s" +
                                 (folder.empty() ? "" : missing());
        guard.unlock();
        if (late) late(line);
        return;
      }
      ended.wait_for(guard, kBeat, [this] { return over; });
    }
  }
};

StartupWatch::StartupWatch(const std::string& folder, int rank, int ranks, int ranks_here,
                           double limit_s, std::function<void(const std::string& line)> late)
    : impl_(std::make_unique<Impl>()) {
  impl_->folder = folder;
  impl_->rank = rank;
  impl_->ranks = ranks;
  impl_->ranks_here = ranks_here;
  impl_->limit_s = limit_s;
  impl_->late = std::move(late);
  impl_->thread = std::thread([impl = impl_.get()] { impl->run(); });
}

StartupWatch::~StartupWatch() {
  {
    const std::lock_guard guard(impl_->lock);
    impl_->over = true;
  }
  impl_->ended.notify_all();
  impl_->thread.join();
  if (!impl_->folder.empty()) std::ofstream(started_of(impl_->folder, impl_->rank)) << "started\n";
}

}  // namespace weft
