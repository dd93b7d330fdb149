#pragma once
// StreamHearing: the signal of an endless stream whose model hears the hidden states of an audio
// encoder. A segment hears its own sound after that of the seconds before it, and nothing that
// comes after it, so a stream can follow a sound that is still being spoken.
//
// Memory: the encoder's weights, and the sound and the features of kPastSeconds and a segment.
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/parts/components.h"
#include "engine/parts/seams.h"
#include "kernels/arena.h"
#include "kernels/dry_run.h"

namespace weft {

class StreamHearing {
 public:
  static constexpr int64_t kPastSeconds = 4;

  // The model has an audio encoder and makes `fps` pictures per second, each with a whole number of
  // samples. Loads no weights.
  StreamHearing(std::shared_ptr<const OpenModel> model, Device device, DType dtype, int threads,
                int64_t fps);

  // The bytes that rows() takes for a segment of so many latent frames, by a dry run.
  uint64_t bytes(DryRun& dry, const AudioEncoder& encoder, int64_t frames);
  size_t arena_high_water() const { return arena_.high_water(); }
  int64_t samples_of_frame() const;        // of the pictures of a latent frame
  void begin_stream() { heard_.clear(); }  // the next sound has nothing before it
  // Returns what the next latent frames follow [frames, signal_columns], of their sound at the
  // encoder's rate, which lasts as long as their pictures. Throws Error(kNonFinite).
  std::vector<float> rows(std::span<const float> samples);

 private:
  const RankPlacement alone_{};
  EncoderSeams seams_{alone_};
  const int64_t fps_;
  Stream stream_;
  Arena arena_;
  Components parts_;
  std::unique_ptr<AudioEncoder> encoder_;  // loaded by the first sound
  std::vector<float> heard_;               // what lies before the next sound, the newest last
};

}  // namespace weft
