#pragma once
// WorkQueue: a thread for what would hold up the server's, as reading and encoding pictures.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "apps/serve/http/http_message.h"

namespace weft {

class WorkQueue {
 public:
  using Clock = std::chrono::steady_clock;

  // So many requests have work here at a time.
  explicit WorkQueue(int most);
  // Ends after the tasks whose time has come. Those of later are dropped.
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // The place of a request, until the last copy of it is gone. Null where all are taken.
  using Place = std::shared_ptr<const void>;
  Place place();
  // 429, for a request that gets no place.
  static HttpResponse full_response();

  // Runs a task of a request that has a place: at `when`, or soon where that has passed, one task
  // after the other. Tasks of one time keep the order in which they were posted. What a task throws
  // is dropped. From any thread.
  void post(std::function<void()> task, Clock::time_point when = {});

  // The response that `make` makes on this thread, within a place; else `when_full`. None is made
  // once this ends, which the server has done before.
  HttpResponse answer(std::function<HttpResponse()> make, HttpResponse when_full = full_response());

 private:
  void work();

  const int most_;
  const std::shared_ptr<std::atomic<int>> placed_ = std::make_shared<std::atomic<int>>(0);
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::multimap<Clock::time_point, std::function<void()>> tasks_;
  std::atomic<bool> is_ending_ = false;  // also read without the lock
  std::thread thread_;                   // last, because it uses the others
};

}  // namespace weft
