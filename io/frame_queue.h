#pragma once
// FrameQueue: a bounded hand-over of frames from the decoder's thread to the encoder's. The bound
// is what keeps memory constant however long the clip is.
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>

#include "io/frame.h"

namespace weft {

// One producer and one consumer, each on a thread of its own; any thread may cancel.
class FrameQueue {
 public:
  explicit FrameQueue(size_t capacity);

  // Blocks while the queue is full. Rethrows the error of cancel().
  void push(Frame frame);
  // The producer's last call: frames already pushed are still handed out.
  void close();
  // Blocks while the queue is empty; nullopt after the last frame. Rethrows the error of cancel().
  std::optional<Frame> pop();
  // Either side failed: both sides' calls, waiting ones included, throw `error` from now on and the
  // frames waiting are dropped. The first cancel counts.
  void cancel(std::exception_ptr error);

 private:
  const size_t capacity_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Frame> frames_;
  bool closed_ = false;
  std::exception_ptr error_;
};

}  // namespace weft
