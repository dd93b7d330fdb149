#include "apps/serve/http/work_queue.h"

#include <exception>
#include <utility>

namespace weft {

namespace {

constexpr int kAgainSeconds = 5;  // after which a place may be free

}  // namespace

WorkQueue::WorkQueue(int most) : most_(most), thread_([this] { work(); }) {}

WorkQueue::~WorkQueue() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

WorkQueue::Place WorkQueue::place() {
  if (++*placed_ > most_) {
    --*placed_;
    return nullptr;
  }
  return {placed_.get(), [placed = placed_](const void*) { --*placed; }};
}

HttpResponse WorkQueue::full_response() {
  return retry_response(429, "queue_full", "As many such requests wait as this server lets wait.",
                        kAgainSeconds);
}

HttpResponse WorkQueue::answer(std::function<HttpResponse()> make, HttpResponse when_full) {
  const Place mine = place();
  if (!mine) return when_full;
  // This is sent where the server drains before.
  HttpResponse response = retry_response(503, "draining", "The server is about to end.");
  response.later = [this, mine, make = std::move(make)](const HttpResponse::Respond& respond) {
    post([this, mine, make, respond] {
      if (is_ending_) return;  // nobody hears it any more
      try {
        respond(make());
      } catch (const std::exception&) {  // its text may name paths
        respond(error_response(500, "internal", "The server failed to answer."));
      }
    });
    return nullptr;
  };
  return response;
}

void WorkQueue::post(std::function<void()> task, Clock::time_point when) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.emplace(when, std::move(task));
  }
  changed_.notify_one();
}

void WorkQueue::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    const bool is_due = !tasks_.empty() && tasks_.begin()->first <= Clock::now();
    if (!is_due) {
      if (is_ending_) break;
      if (tasks_.empty())
        changed_.wait(lock);
      else
        changed_.wait_until(lock, Clock::time_point(tasks_.begin()->first));
      continue;
    }
    auto task = std::move(tasks_.extract(tasks_.begin()).mapped());
    lock.unlock();
    try {
      task();
    } catch (const std::exception&) {  // tasks answer their own errors
    }
    task = nullptr;  // what it held may post
    lock.lock();
  }
  const auto dropped = std::exchange(tasks_, {});
  lock.unlock();
}

}  // namespace weft
