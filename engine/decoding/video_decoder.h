#pragma once
// VideoDecoder: decodes the latent frames of one video as they come, in order, and hands the
// pictures to a writer.
#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "engine/decoding/frame_writer.h"
#include "engine/parts/seams.h"
#include "kernels/arena.h"
#include "models/vae.h"

namespace weft {

// Decoding that would end within this time is finished even if the user asked to stop.
inline constexpr double kFinishSeconds = 2;

struct DecoderSettings {
  const VaeTraits& traits;
  const Vae* vae = nullptr;         // may be null on a rank without a band (RankPlacement::band)
  std::array<int64_t, 3> latent{};  // channels, rows and columns of a latent frame
  FrameWriter* writer = nullptr;    // used on the root only
  bool float_frames = false;        // the same on all ranks; true where the root has a `video`
  TensorView video{};               // [3, frames, H, W] f32 of the host, filled with [0, 1]
  int64_t total = 0;                // latent frames of the whole video for messages; 0: unknown
  int64_t pictures = 0;             // of the whole video; 0: as many as `total` has
  // The pictures that are passed on, to the writer and to `video`, where the first of them is
  // number video_begin. The others are decoded because these follow from them.
  Range shown{0, std::numeric_limits<int64_t>::max()};
  int64_t video_begin = 0;
  // Called with this rank's rows of every latent frame's pictures [n, 3, rows, W] f32, which begin
  // with picture `first`.
  std::function<void(int64_t first, const TensorView& rows)> on_rows{};
  // Called on the root when the writer has received the pictures of one more latent frame.
  std::function<void(int64_t latent_frames, int64_t pictures)> on_chunk{};
};

// Every rank of the replica may have one. The ranks that have a band of rows (all, some or one of
// them) decode; the root passes pictures to the writer; any other rank need not call anything.
//
// The VAE's state is kept between calls, so cutting a video into pushes changes no bit of it, and
// memory does not depend on the number of frames. For a chunk (one latent frame) of n pictures a
// rank with a band sends the root n * 3 * rows * W bytes, or 4 times as many if float_frames.
class VideoDecoder {
 public:
  VideoDecoder(Stream& stream, Arena& arena, const RankPlacement& placement,
               const DecoderSettings& settings);

  // Decodes the next latent frames [C, f, h, w] f32, normalised, in host memory. A rank without a
  // band reads only their number, so there `latents` may have no data. Throws Error(kNonFinite)
  // that names the latent frame. A root without a band returns before the pictures are there: they
  // arrive while it computes, and the next push, collect() or finish() passes them on. It holds the
  // pictures of one push.
  void push(const TensorView& latents);
  // Goes on after `latent_frames` that an earlier decoder has decoded; called before the first
  // push. `last` [C, f, h, w] are the last VaeTraits::history of them, or all.
  void resume(const TensorView& last, int64_t latent_frames);
  // Waits for the pictures of the last push on a root without a band. Does nothing elsewhere.
  void collect();
  // The pictures of all pushes are with the writer, and every message has been sent. More may be
  // pushed.
  void finish();

  // Pushes the next latent frames of settings.total, which every rank has that decodes, one by one.
  // All ranks call it. They set `stop` or none does; the root's value decides: before every frame
  // it tells each rank whether to stop (8 bytes).
  void decode(const TensorView& latents, const std::atomic<bool>* stop);

  int64_t pictures() const { return pictures_; }  // on the root: passed to the writer so far

 private:
  // Pictures [n, rows, W, 3] u8 of this rank's band in host memory. On a device two chunks are used
  // in turn, so that the copy of one overlaps with the decoding of the next.
  struct Chunk {
    TensorView reserve(const std::array<int64_t, 4>& shape, const Stream& stream);

    Tensor memory;
    PinnedMemory pinned;  // in place of `memory` on a device
    TensorView pictures;
    Tag tag;
    DeviceEvent copied;
    Communicator::Pending sent;
  };
  // The pictures of a chunk that the root is going to receive.
  struct Arrival {
    int64_t chunk, first, frames;                   // latent frame, picture and number of pictures
    std::vector<std::pair<int64_t, Tensor>> bands;  // the first row, and [n, rows, W, 3] u8
    Communicator::Pending pending;
  };

  void require_job() const;
  bool shows(int64_t first, int64_t frames) const;
  void expect(int64_t first, int64_t frames, const Tag& tag);
  TensorView decode_rows(const TensorView& latents, int64_t index, const Tag& tag);
  TensorView join_floats(const TensorView& rows, int64_t first, int64_t frames, const Tag& tag);
  void show(const TensorView& rows, const Tag& tag);
  void hand_over(Chunk& chunk);
  void deliver(const TensorView& own);
  void heed_stop(const std::atomic<bool>& asked, double seconds);

  Stream& stream_;
  Arena& arena_;
  const RankPlacement& placement_;
  const DecoderSettings settings_;
  BandSeams seams_;
  const Range band_;
  const int64_t height_, width_;  // pixels
  std::optional<VaeDecoder> decoder_;
  Tensor latent_;  // the band of one latent frame
  Chunk chunks_[2];
  std::deque<Arrival> arrivals_;
  std::chrono::steady_clock::time_point begun_{};  // when decode() was first called
  int64_t pushed_ = 0, shown_ = 0, handed_ = 0, pictures_ = 0;
};

}  // namespace weft
