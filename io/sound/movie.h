#pragma once
// MovieSink: pictures and their sound as H.264 and AAC in one MP4, as a whole file or as a stream
// of fragments.
//
// Times come from indices and never add up: picture k is shown at k / fps, sample n is heard at
// n / rate. An edit list takes the AAC encoder's delay back, so both start at 0.
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/media/video.h"

namespace weft {

struct MovieSettings {
  VideoSettings video;  // kept_frames and cuts are not used
  int sample_rate = 16000;
  int audio_bit_rate = 64000;
  // Live: pictures of a fragment, and fragments from one that begins with an IDR picture, where a
  // player can join, to the next.
  int fragment = 12;
  int key_every = 1;

  // Error(kUsage) if a side is odd.
  void check() const;
};

struct MovieCounts {
  int64_t pictures = 0, samples = 0;
  double max_skew = 0;  // seconds between the ends of pictures and sound, after any push

  // Counts one push().
  void add_push(size_t samples_pushed, const MovieSettings& settings);
};

// Only one thread at a time may use it. Errors: kOutput with one line.
class MovieSink {
 public:
  virtual ~MovieSink() = default;
  // Appends one picture and samples in [-1, 1]; either part may be the longer one for a while.
  // `key` makes it an IDR picture, and live the first of a fragment.
  virtual void push(const Frame& picture, std::span<const float> sound, bool key = false) = 0;
  // Ends the movie. Returns the final path, which exists from now on; "" for a descriptor.
  virtual std::string finish() = 0;
  virtual MovieCounts counts() const = 0;
};

// Writes `path`, which ends in .mp4, with its index in front. It grows in `.<name>.part.mp4` and is
// renamed at the end. Odd sizes and other extensions are an Error(kUsage).
std::unique_ptr<MovieSink> make_movie(const std::string& path, const MovieSettings& settings,
                                      Overwrite overwrite);

// Writes fragmented MP4 to a descriptor, which need not be seekable, stays open and is the
// caller's. A fragment is written once its pictures are there. No pictures are reordered. `name` is
// for errors, as "standard output".
std::unique_ptr<MovieSink> make_live_movie(int descriptor, const std::string& name,
                                           const MovieSettings& settings);

}  // namespace weft
