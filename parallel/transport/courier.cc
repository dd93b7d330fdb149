#include "parallel/transport/courier.h"

#include <algorithm>

namespace weft {

namespace {

// The finalizer of splitmix64.
uint64_t mixed(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

}  // namespace

Courier::Courier(uint64_t seed, int max_delay_us)
    : seed_(seed), max_delay_us_(max_delay_us), thread_([this] { run(); }) {}

Courier::~Courier() {
  {
    const std::lock_guard guard(lock_);
    leaving_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Courier::add(int from, int to, const TagBits& tag, std::function<void()> deliver) {
  {
    const std::lock_guard guard(lock_);
    Route& route = routes_[{from, to, tag}];
    const uint64_t ends = static_cast<uint64_t>(from) << 32 | static_cast<uint64_t>(to);
    const uint64_t random =
        mixed(mixed(mixed(seed_ + ends) + std::hash<TagBits>()(tag)) + route.count++);
    const std::chrono::microseconds delay(random % static_cast<uint64_t>(max_delay_us_ + 1));
    route.last = std::max(route.last, Clock::now() + delay);
    under_way_.emplace(route.last, std::move(deliver));
  }
  changed_.notify_one();
}

void Courier::run() {
  std::unique_lock guard(lock_);
  while (!leaving_) {
    if (under_way_.empty()) {
      changed_.wait(guard);
    } else if (const auto due = under_way_.begin()->first; due > Clock::now()) {
      changed_.wait_until(guard, due);
    } else {
      const auto deliver = std::move(under_way_.extract(under_way_.begin()).mapped());
      guard.unlock();
      deliver();
      guard.lock();
    }
  }
}

}  // namespace weft
