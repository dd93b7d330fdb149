#include "io/media/frame_queue.h"

#include <utility>

#include "kernels/check.h"

namespace weft {

FrameQueue::FrameQueue(size_t capacity) : capacity_(capacity) { CHECK(capacity > 0); }

void FrameQueue::push(Frame frame) {
  std::unique_lock lock(mutex_);
  CHECK(!closed_);
  changed_.wait(lock, [&] { return error_ || frames_.size() < capacity_; });
  if (error_) std::rethrow_exception(error_);
  frames_.push_back(std::move(frame));
  changed_.notify_all();
}

void FrameQueue::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return error_ || (frames_.empty() && waiting_); });
  if (error_) std::rethrow_exception(error_);
}

void FrameQueue::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

std::optional<Frame> FrameQueue::pop() {
  std::unique_lock lock(mutex_);
  waiting_ = true;
  changed_.notify_all();
  changed_.wait(lock, [&] { return error_ || closed_ || !frames_.empty(); });
  waiting_ = false;
  if (error_) std::rethrow_exception(error_);
  if (frames_.empty()) return std::nullopt;
  Frame frame = std::move(frames_.front());
  frames_.pop_front();
  changed_.notify_all();
  return frame;
}

void FrameQueue::cancel(std::exception_ptr error) {
  CHECK(error != nullptr);
  std::lock_guard lock(mutex_);
  if (!error_) error_ = error;
  frames_.clear();
  changed_.notify_all();
}

}  // namespace weft
