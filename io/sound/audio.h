#pragma once
// Sound of one channel: samples in memory, and sources that give it piece by piece: files, raw PCM
// from a descriptor, and another source at another rate.
//
// A sample is f32 with full scale ±1. Every source clips larger values, and NaN or infinity is an
// Error(kMedia) that gives the sample's index.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace weft {

struct Sound {
  int rate = 0;  // samples per second
  std::vector<float> samples;

  double seconds() const { return rate > 0 ? double(samples.size()) / rate : 0; }
};

// Only one thread at a time may use a source, but any may stop it.
class SoundSource {
 public:
  virtual ~SoundSource() = default;
  virtual int rate() const = 0;  // samples per second
  // Fills `samples` from the front and returns how many there are: at least one, or 0 at the end.
  // Blocks until there is one.
  virtual size_t read(std::span<float> samples) = 0;
  // Makes a read() that waits for samples end the sound, soon.
  virtual void stop() {}
};

// Reads the rest of a source.
Sound read_all(SoundSource& source);

// A sound in memory; `piece` samples per read() at most.
std::unique_ptr<SoundSource> sound_in_memory(Sound sound, size_t piece = SIZE_MAX);

// Raw samples of one channel, little endian.
enum class PcmFormat : uint8_t { kS16, kF32 };

// Reads raw PCM from a descriptor, which stays open and is the caller's. A read gives what is there
// and waits for no more. Bytes at the end that are no whole sample are an Error(kMedia), a failed
// read(2) too.
std::unique_ptr<SoundSource> pcm_from(int descriptor, PcmFormat format, int rate);

// Opens the sound of an untrusted file of a kind that audio_file.cc lists. Channels
// are mixed to one (the mean, for stereo), and the rate is changed to `rate`. Limits: 8 streams and
// channels, 4000 to 384,000 samples per second, 4 hours of sound, 5 minutes of work; a sound
// without samples is refused. Errors: kMedia.
std::unique_ptr<SoundSource> open_sound(const std::string& path, int rate);

// The source at another rate.
std::unique_ptr<SoundSource> resampled(std::unique_ptr<SoundSource> source, int rate);

// Changes the rate of a sound piece by piece (libswresample: polyphase Kaiser-windowed sinc). The
// output does not depend on how the input was cut, to the bit. Its state does not grow.
class Resampler {
 public:
  Resampler(int from, int to);
  ~Resampler();
  Resampler(const Resampler&) = delete;
  Resampler& operator=(const Resampler&) = delete;

  // Appends to `out` what `samples` and everything before it decide. Until finish() at most
  // look_ahead() samples of the output are missing.
  void push(std::span<const float> samples, std::vector<float>& out);
  // Appends the rest. Together out has round(n to / from) samples, give or take one.
  void finish(std::vector<float>& out);
  int look_ahead() const;  // in samples of the output

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft
