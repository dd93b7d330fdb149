#include "io/sound/sounded_sink.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "io/sound/movie.h"

namespace weft {

namespace {

constexpr int kBitRate = 128000;

class SoundedSink final : public FrameSink {
 public:
  SoundedSink(const std::string& path, const VideoSettings& settings, Overwrite overwrite,
              Sound sound)
      : settings_(settings),
        sound_(std::move(sound)),
        movie_(make_movie(
            path, {.video = settings, .sample_rate = sound_.rate, .audio_bit_rate = kBitRate},
            overwrite)) {}

  void push(const Frame& frame) override {
    const size_t begin = sample_at(pictures_), end = sample_at(++pictures_);
    std::vector<float> heard(end - begin, 0.0f);
    if (begin < sound_.samples.size())
      std::copy_n(sound_.samples.begin() + static_cast<ptrdiff_t>(begin),
                  std::min(heard.size(), sound_.samples.size() - begin), heard.begin());
    movie_->push(frame, heard);
  }
  std::string finish() override { return movie_->finish(); }

 private:
  // The first sample that is heard with a picture. It comes from the index, so that no error adds
  // up.
  size_t sample_at(int64_t picture) const {
    return static_cast<size_t>(picture * sound_.rate * settings_.fps_den / settings_.fps_num);
  }

  const VideoSettings settings_;
  const Sound sound_;
  std::unique_ptr<MovieSink> movie_;
  int64_t pictures_ = 0;
};

}  // namespace

std::unique_ptr<FrameSink> make_sounded_sink(const std::string& path, const VideoSettings& settings,
                                             Overwrite overwrite, Sound sound) {
  return std::make_unique<SoundedSink>(path, settings, overwrite, std::move(sound));
}

}  // namespace weft
