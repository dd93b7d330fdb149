#pragma once
// Decodes latents to frames, chunk by chunk. A writer thread encodes the frames meanwhile.
#include <atomic>
#include <exception>
#include <functional>
#include <string>
#include <thread>

#include "engine/generation/rank_placement.h"
#include "io/media/frame_queue.h"
#include "io/media/video.h"
#include "kernels/arena.h"
#include "kernels/meter.h"
#include "models/vae.h"

namespace weft {

// At most this many frames wait for the writer: two chunks of the decoder.
inline constexpr size_t kFramesWaiting = 8;

// Hashes frames and passes them to a sink on a thread of its own. One thread may push.
class FrameWriter {
 public:
  explicit FrameWriter(FrameSink* sink);  // null: frames are only hashed
  ~FrameWriter();                         // without finish(): drops the frames that still wait
  FrameWriter(const FrameWriter&) = delete;
  FrameWriter& operator=(const FrameWriter&) = delete;

  void push(Frame frame);                 // rethrows the sink's error
  void finish();                          // waits until the sink has taken every frame
  int frames() const { return frames_; }  // after finish()
  std::string hash() { return hash_.hex(); }

 private:
  void work();

  FrameSink* sink_;
  Meter* meter_;  // the writer thread's meter, or null
  FrameQueue queue_{kFramesWaiting};
  FrameHash hash_;
  int frames_ = 0;
  std::exception_ptr error_;
  std::thread thread_;
};

// Converts decoded chunks to 8-bit RGB (frames_to_rgb8) and passes them to a writer. On a device,
// the copy of a chunk to the host overlaps with the decoding of the next chunk, so the writer
// receives it one chunk later.
class FrameCopies {
 public:
  FrameCopies(Stream& stream, FrameWriter& writer);
  void push(Arena& arena, const TensorView& frames);  // [n, 3, H, W] f32 in [-1, 1]
  void finish();                                      // passes on the last chunk

 private:
  struct Chunk {
    PinnedMemory memory;
    TensorView view;
    DeviceEvent copied;
  };
  void hand_over(Chunk& chunk);

  Stream& stream_;
  FrameWriter& writer_;
  Chunk chunks_[2];  // on a device: used alternately
  int next_ = 0;
};

struct DecodeJob {
  // `latents` and `video` are in host memory.
  TensorView latents;                       // [z, F, h, w] f32, normalised; the same on every rank
  FrameWriter* writer = nullptr;            // used on the root only
  TensorView video;                         // [3, frames, H, W] f32, filled with [0, 1] if given
  std::function<void(int chunk)> on_chunk;  // called with the number of chunks done
  const std::atomic<bool>* stop = nullptr;  // all ranks set it or none; the root's value decides
};

// Decoding that would end within this time is finished even if the user asked to stop.
inline constexpr double kFinishSeconds = 2;

// Every rank of the replica decodes its band of rows, chunk by chunk. For a chunk of n frames it
// sends n * 3 * rows * W * 4 bytes to the root. Before every chunk the root tells each rank whether
// to stop (8 bytes). Throws Error(kNonFinite) that names the chunk.
void decode(Stream& stream, Arena& arena, const Vae& vae, RankPlacement& placement,
            const DecodeJob& job);

}  // namespace weft
