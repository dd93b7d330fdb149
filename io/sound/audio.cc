#include "io/sound/audio.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "io/sound/samples.h"
#include "kernels/check.h"

namespace weft {
namespace {

class MemorySource final : public SoundSource {
 public:
  MemorySource(Sound sound, size_t piece) : sound_(std::move(sound)), piece_(piece) {
    CHECK(sound_.rate > 0 && piece > 0, sound_.rate, piece);
  }
  int rate() const override { return sound_.rate; }
  size_t read(std::span<float> samples) override {
    const size_t count = std::min({samples.size(), piece_, sound_.samples.size() - next_});
    std::copy_n(sound_.samples.begin() + int64_t(next_), count, samples.begin());
    limit_samples(samples.first(count), int64_t(next_), "the sound");
    next_ += count;
    return count;
  }

 private:
  const Sound sound_;
  const size_t piece_;
  size_t next_ = 0;
};

class PcmSource final : public SoundSource {
 public:
  PcmSource(int descriptor, PcmFormat format, int rate)
      : descriptor_(descriptor), format_(format), rate_(rate) {
    CHECK(rate > 0, rate);
  }
  int rate() const override { return rate_; }

  size_t read(std::span<float> samples) override {
    if (samples.empty()) return 0;
    const size_t width = format_ == PcmFormat::kS16 ? 2 : 4;
    const size_t wanted = std::min(samples.size() * width, bytes_.size());
    while (held_ < width) {
      if (!ready()) return 0;
      const ssize_t got = ::read(descriptor_, bytes_.data() + held_, wanted - held_);
      if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (got < 0)
        throw Error(ErrorKind::kMedia,
                    std::string("cannot read PCM samples: ") + std::strerror(errno));
      if (got == 0 && held_ > 0)
        throw Error(ErrorKind::kMedia, "the PCM input ends within sample " + std::to_string(next_) +
                                           ": it has " + std::to_string(held_) + " of its " +
                                           std::to_string(width) + " bytes");
      if (got == 0) return 0;
      held_ += size_t(got);
    }
    const size_t count = held_ / width;
    for (size_t i = 0; i < count; ++i) samples[i] = sample_at(i);
    held_ -= count * width;
    std::memmove(bytes_.data(), bytes_.data() + count * width, held_);
    limit_samples(samples.first(count), next_, "the PCM input");
    next_ += int64_t(count);
    return count;
  }
  void stop() override { stopped_ = true; }

 private:
  // Waits until read(2) has something to say. False: the source was stopped.
  bool ready() const {
    constexpr int kWaitMs = 100;
    pollfd input{.fd = descriptor_, .events = POLLIN, .revents = 0};
    while (!stopped_) {
      const int events = poll(&input, 1, kWaitMs);
      if (events > 0 || (events < 0 && errno != EINTR)) return true;
    }
    return false;
  }

  float sample_at(size_t i) const {
    static_assert(std::endian::native == std::endian::little);
    if (format_ == PcmFormat::kF32) {
      float value;
      std::memcpy(&value, bytes_.data() + 4 * i, 4);
      return value;
    }
    int16_t value;
    std::memcpy(&value, bytes_.data() + 2 * i, 2);
    return float(value) / 32768;
  }

  const int descriptor_;
  const PcmFormat format_;
  const int rate_;
  std::array<char, 16384> bytes_;
  size_t held_ = 0;   // bytes of a sample that has not come whole
  int64_t next_ = 0;  // index of the next sample
  std::atomic<bool> stopped_ = false;
};

}  // namespace

void limit_samples(std::span<float> samples, int64_t first, const std::string& source) {
  for (size_t i = 0; i < samples.size(); ++i) {
    if (!std::isfinite(samples[i]))
      throw Error(ErrorKind::kMedia, source + ": sample " + std::to_string(first + int64_t(i)) +
                                         " is not a finite number");
    samples[i] = std::clamp(samples[i], -1.0f, 1.0f);
  }
}

Sound read_all(SoundSource& source) {
  constexpr size_t kPiece = 16384;
  Sound sound{source.rate(), {}};
  for (;;) {
    const size_t held = sound.samples.size();
    sound.samples.resize(held + kPiece);
    const size_t count = source.read(std::span(sound.samples).subspan(held));
    sound.samples.resize(held + count);
    if (count == 0) return sound;
  }
}

std::unique_ptr<SoundSource> sound_in_memory(Sound sound, size_t piece) {
  return std::make_unique<MemorySource>(std::move(sound), piece);
}

std::unique_ptr<SoundSource> pcm_from(int descriptor, PcmFormat format, int rate) {
  return std::make_unique<PcmSource>(descriptor, format, rate);
}

}  // namespace weft
