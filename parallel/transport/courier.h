#pragma once
// Courier: a thread that delivers messages after random delays, as a network does (LocalOptions).
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#include "parallel/tag.h"

namespace weft {

class Courier {
 public:
  Courier(uint64_t seed, int max_delay_us);
  ~Courier();
  Courier(const Courier&) = delete;

  // Calls deliver() after a delay. It depends on the seed, the message and its number among those
  // with its ends and tag, and not on the order of the threads. Messages with the same ends and tag
  // keep their order.
  void add(int from, int to, const TagBits& tag, std::function<void()> deliver);

 private:
  using Clock = std::chrono::steady_clock;
  struct Route {
    uint64_t count = 0;
    Clock::time_point last{};
  };
  void run();

  const uint64_t seed_;
  const int max_delay_us_;
  std::mutex lock_;
  std::condition_variable changed_;
  std::map<std::tuple<int, int, TagBits>, Route> routes_;
  std::multimap<Clock::time_point, std::function<void()>> under_way_;  // by due time
  bool leaving_ = false;
  std::thread thread_;  // declared last: it uses the members above
};

}  // namespace weft
