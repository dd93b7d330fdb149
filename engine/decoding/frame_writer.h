#pragma once
// FrameWriter: hashes decoded pictures and passes them to a sink on a thread of its own.
#include <chrono>
#include <exception>
#include <string>
#include <thread>

#include "io/media/frame_queue.h"
#include "io/media/video.h"
#include "kernels/meter.h"

namespace weft {

// At most this many frames wait for the writer: two chunks of the decoder.
inline constexpr size_t kFramesWaiting = 8;

// The frames that an earlier run has written.
struct FramesSoFar {
  int frames = 0;
  std::string hash{};  // FrameHash::state()
};

// One thread may push.
class FrameWriter {
 public:
  // Without a sink frames are only hashed.
  explicit FrameWriter(FrameSink* sink, const FramesSoFar& before = {});
  ~FrameWriter();  // without finish(): drops the frames that still wait
  FrameWriter(const FrameWriter&) = delete;
  FrameWriter& operator=(const FrameWriter&) = delete;

  void push(Frame frame);  // rethrows the sink's error
  // Waits until the sink has taken every frame, and lets it keep them.
  FramesSoFar keep();
  void finish();  // waits until the sink has taken every frame

  // These may be called after finish(). They count the earlier run's frames, too.
  int frames() const { return frames_; }
  std::string hash() { return hash_.hex(); }
  // The time at which the sink had taken this run's first frame.
  std::chrono::steady_clock::time_point first_frame_at() const { return first_frame_at_; }

 private:
  void work();

  FrameSink* sink_;
  Meter* meter_;  // the writer thread's meter, or null
  FrameQueue queue_{kFramesWaiting};
  FrameHash hash_;
  int frames_;
  std::chrono::steady_clock::time_point first_frame_at_{};
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace weft
