#pragma once
// FrameQueue: a bounded queue of frames from the decoder's thread to the encoder's. The bound keeps
// memory constant for clips of any length.
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>

#include "io/media/frame.h"

namespace weft {

// The queue has one producer and one consumer, each on a thread of its own. Any thread may cancel.
class FrameQueue {
 public:
  explicit FrameQueue(size_t capacity);

  // Blocks while the queue is full. Rethrows the error of cancel().
  void push(Frame frame);
  // Blocks until the consumer has taken every frame and waits for another one. Rethrows the error
  // of cancel().
  void drain();
  // The producer's last call. Frames that were pushed before are still delivered.
  void close();
  // Blocks while the queue is empty; nullopt after the last frame. Rethrows the error of cancel().
  std::optional<Frame> pop();
  // Called by a side that failed. From now on all calls of both sides, including blocked ones,
  // throw `error`, and the waiting frames are dropped. Only the first cancel has an effect.
  void cancel(std::exception_ptr error);

 private:
  const size_t capacity_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Frame> frames_;
  bool closed_ = false, waiting_ = false;
  std::exception_ptr error_;
};

}  // namespace weft
