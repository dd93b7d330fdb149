#pragma once
// Decoding of latents to frames, chunk by chunk, with the writer on a thread of its own.
#include <atomic>
#include <exception>
#include <functional>
#include <string>
#include <thread>

#include "engine/replica.h"
#include "io/frame_queue.h"
#include "io/video.h"
#include "kernels/arena.h"
#include "kernels/meter.h"
#include "models/wan_vae.h"

namespace weft {

// Frames that may wait for the writer: two chunks of the decoder.
inline constexpr size_t kFramesWaiting = 8;

// Hands frames to a sink on a thread of its own and hashes them on the way. One producer.
class FrameWriter {
 public:
  explicit FrameWriter(FrameSink* sink);  // null: frames are only hashed
  ~FrameWriter();                         // without finish(): drops what waits
  FrameWriter(const FrameWriter&) = delete;
  FrameWriter& operator=(const FrameWriter&) = delete;

  void push(Frame frame);                 // rethrows the sink's error
  void finish();                          // waits until the sink has taken every frame
  int frames() const { return frames_; }  // after finish()
  std::string hash() { return hash_.hex(); }

 private:
  void work();

  FrameSink* sink_;
  Meter* meter_;  // of the thread, or null
  FrameQueue queue_{kFramesWaiting};
  FrameHash hash_;
  int frames_ = 0;
  std::exception_ptr error_;
  std::thread thread_;
};

// Decoded chunks on their way from the stream's device to a writer, as frames_to_rgb8 has them.
// From a device they are copied while the next chunk is decoded: the writer gets them behind that.
class FrameCopies {
 public:
  FrameCopies(Stream& stream, FrameWriter& writer);
  void push(Arena& arena, const TensorView& frames);  // [n, 3, H, W] f32 in [-1, 1]
  void finish();                                      // hands over the last

 private:
  struct Chunk {
    PinnedMemory memory;
    TensorView view;
    DeviceEvent copied;
  };
  void hand_over(Chunk& chunk);

  Stream& stream_;
  FrameWriter& writer_;
  Chunk chunks_[2];  // of a device, in turns
  int next_ = 0;
};

struct DecodeJob {
  // Of the host.
  TensorView latents;                       // [z, F, h, w] f32, normalised; the same on every rank
  FrameWriter* writer = nullptr;            // the root's
  TensorView video;                         // [3, frames, H, W] f32, filled with [0, 1] if given
  std::function<void(int chunk)> on_chunk;  // chunks done
  const std::atomic<bool>* stop = nullptr;  // every rank has one, or none; the root's decides
};

// Work this close to its end is finished although the user asked to stop.
inline constexpr double kFinishSeconds = 2;

// Every rank of the replica decodes its band of rows, chunk by chunk, and sends the root
// n * 3 * rows * W * 4 bytes for a chunk of n frames, and hears of the root before each whether to
// stop (8 bytes). Error(kNonFinite) naming the chunk.
void decode(Stream& stream, Arena& arena, const WanVae& vae, Replica& replica,
            const DecodeJob& job);

}  // namespace weft
