#include "apps/serve/openai/image_desk.h"

#include <exception>
#include <utility>

namespace weft {

ImageDesk::ImageDesk() : thread_([this] { work(); }) {}

ImageDesk::~ImageDesk() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void ImageDesk::post(std::function<void()> task, Clock::time_point when) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.emplace(when, std::move(task));
  }
  changed_.notify_one();
}

void ImageDesk::work() {
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
