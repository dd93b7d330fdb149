// Sound of files and the change of its rate, by FFmpeg.
#include <algorithm>
#include <cmath>

#include "io/media/input_media.h"
#include "io/sound/audio.h"
#include "io/sound/samples.h"
#include "kernels/check.h"

namespace weft {

using ffmpeg::Owner;
using ffmpeg::refuse_media;

namespace {

constexpr int64_t kMaxSeconds = 4 * 3600;
constexpr int kMinRate = 4000, kMaxRate = 384000, kMaxChannels = 8;

// The names of all decoders of sound.
std::string sound_decoders() {
  std::string names;
  void* at = nullptr;
  while (const AVCodec* codec = av_codec_iterate(&at))
    if (codec->type == AVMEDIA_TYPE_AUDIO && av_codec_is_decoder(codec))
      names += (names.empty() ? "" : ",") + std::string(codec->name);
  return names;
}

// Demuxers that open no other file and no address: containers of one stream and of several.
const ffmpeg::InputLimits& sound_limits() {
  static const std::string codecs = sound_decoders();
  static const ffmpeg::InputLimits limits{
      AVMEDIA_TYPE_AUDIO,
      "wav,w64,aiff,caf,au,voc,flac,mp3,ogg,aac,loas,ac3,eac3,dts,amr,gsm,wv,tta,ape,asf,"
      "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,flv,mpeg,mpegts",
      codecs.c_str(),
      "a WAV, AIFF, CAF, AU, FLAC, MP2, MP3, Ogg, AAC, AC-3, DTS, AMR, WavPack, WMA, MP4, WebM, "
      "AVI or MPEG file",
      int64_t{20} << 20,
      kMaxSeconds,
      std::chrono::seconds(300)};
  return limits;
}

// A converter to one channel of f32 at the rate `to`.
Owner<SwrContext> make_resampler(AVChannelLayout layout, AVSampleFormat format, int from, int to) {
  ffmpeg::silence_log();
  AVChannelLayout mono = AV_CHANNEL_LAYOUT_MONO;
  SwrContext* made = nullptr;
  int result =
      swr_alloc_set_opts2(&made, &mono, AV_SAMPLE_FMT_FLT, to, &layout, format, from, 0, nullptr);
  Owner<SwrContext> context(made);
  if (result >= 0) {
    // Without a bound the mix of float channels may exceed full scale: 1.41 for stereo.
    av_opt_set_double(made, "rematrix_maxval", 1.0, 0);
    // A filter's phases are exact for any pair of rates: their step is a whole number of 1/to.
    av_opt_set_int(made, "exact_rational", 1, 0);
    result = swr_init(made);
  }
  if (result < 0)
    throw Error(ErrorKind::kMedia, "no conversion of sound from " + std::to_string(from) + " to " +
                                       std::to_string(to) +
                                       " samples per second: " + ffmpeg::reason(result));
  return context;
}

// Appends what the converter gives for `count` samples; none and a null pointer end the sound.
void convert(SwrContext* context, const uint8_t** planes, int count, std::vector<float>& out) {
  const int room = swr_get_out_samples(context, count);
  CHECK(room >= 0, room);
  const size_t held = out.size();
  out.resize(held + size_t(room) + 1);
  auto* target = reinterpret_cast<uint8_t*>(out.data() + held);
  const int made = swr_convert(context, &target, room + 1, planes, count);
  if (made < 0)
    throw Error(ErrorKind::kMedia, "the sound cannot be converted: " + ffmpeg::reason(made));
  out.resize(held + size_t(made));
}

// Hands out samples that were made ahead of a read.
class BufferedSource : public SoundSource {
 public:
  explicit BufferedSource(int rate) : rate_(rate) {}
  int rate() const override { return rate_; }

  size_t read(std::span<float> samples) override {
    if (samples.empty()) return 0;
    if (!is_ready()) return 0;
    const size_t count = std::min(samples.size(), made_.size() - next_);
    std::copy_n(made_.begin() + int64_t(next_), count, samples.begin());
    next_ += count;
    given_ += int64_t(count);
    return count;
  }

  // Waits for the next sample. False at the end.
  bool is_ready() {
    while (next_ == made_.size() && !ended_) {
      made_.clear();
      next_ = 0;
      ended_ = !make(made_);
      limit_samples(made_, given_, name());
    }
    return next_ < made_.size();
  }

 protected:
  // Appends the next samples, if there are any. Returns false after the last ones.
  virtual bool make(std::vector<float>& samples) = 0;
  virtual std::string name() const = 0;

 private:
  const int rate_;
  std::vector<float> made_;
  size_t next_ = 0;
  int64_t given_ = 0;
  bool ended_ = false;
};

class FileSource final : public BufferedSource {
 public:
  FileSource(const std::string& path, int rate)
      : BufferedSource(rate), media_(path, sound_limits()), decoder_(media_) {
    media_.pause();
  }

 private:
  bool make(std::vector<float>& samples) override {
    media_.resume();
    const bool more = decoder_.next(frame_.get());
    if (more) {
      add(samples);
    } else if (converter_) {
      convert(converter_.get(), nullptr, 0, samples);
    }
    const size_t dropped = std::min(samples.size(), before_start_);
    samples.erase(samples.begin(), samples.begin() + int64_t(dropped));
    before_start_ -= dropped;
    media_.pause();
    return more;
  }

  void add(std::vector<float>& samples) {
    const AVFrame& frame = *frame_;
    if (!converter_) {
      if (frame.sample_rate < kMinRate || frame.sample_rate > kMaxRate)
        refuse_media(media_.path(), "its sound has " + std::to_string(frame.sample_rate) +
                                        " samples per second, but 4000 to 384000 are read");
      if (frame.ch_layout.nb_channels < 1 || frame.ch_layout.nb_channels > kMaxChannels)
        refuse_media(media_.path(), "its sound has " + std::to_string(frame.ch_layout.nb_channels) +
                                        " channels, but 1 to 8 are read");
      format_ = frame.format;
      rate_in_ = frame.sample_rate;
      channels_ = frame.ch_layout.nb_channels;
      AVChannelLayout layout{};
      if (frame.ch_layout.order == AV_CHANNEL_ORDER_UNSPEC)
        av_channel_layout_default(&layout, channels_);  // a WAV file may leave it open
      else
        av_channel_layout_copy(&layout, &frame.ch_layout);
      converter_ =
          make_resampler(layout, static_cast<AVSampleFormat>(frame.format), rate_in_, rate());
      av_channel_layout_uninit(&layout);
      if (frame.pts != AV_NOPTS_VALUE && frame.pts < 0)
        before_start_ =
            size_t(av_rescale_q(-frame.pts, media_.stream()->time_base, AVRational{1, rate()}));
    }
    if (frame.format != format_ || frame.sample_rate != rate_in_ ||
        frame.ch_layout.nb_channels != channels_)
      refuse_media(media_.path(), "the rate or the channels of its sound change");
    decoded_ += frame.nb_samples;
    if (decoded_ > kMaxSeconds * rate_in_) refuse_media(media_.path(), "longer than 4 hours");
    convert(converter_.get(), const_cast<const uint8_t**>(frame.extended_data), frame.nb_samples,
            samples);
  }

  std::string name() const override { return "'" + media_.path() + "'"; }

  ffmpeg::InputMedia media_;
  ffmpeg::MediaDecoder decoder_;
  Owner<AVFrame> frame_{av_frame_alloc()};
  Owner<SwrContext> converter_;
  int format_ = 0, rate_in_ = 0, channels_ = 0;
  int64_t decoded_ = 0;
  size_t before_start_ = 0;  // samples that are to be dropped: an encoder's delay before time 0
};

class ResampledSource final : public BufferedSource {
 public:
  ResampledSource(std::unique_ptr<SoundSource> source, int rate)
      : BufferedSource(rate), source_(std::move(source)), resampler_(source_->rate(), rate) {}
  void stop() override { source_->stop(); }

 private:
  bool make(std::vector<float>& samples) override {
    const size_t count = source_->read(piece_);
    if (count > 0)
      resampler_.push(std::span(piece_).first(count), samples);
    else
      resampler_.finish(samples);
    return count > 0;
  }
  std::string name() const override { return "the resampled sound"; }

  std::unique_ptr<SoundSource> source_;
  Resampler resampler_;
  std::vector<float> piece_ = std::vector<float>(4096);
};

}  // namespace

struct Resampler::Impl {
  int from, to;
  Owner<SwrContext> context;  // null where the rates are equal
};

Resampler::Resampler(int from, int to) : impl_(std::make_unique<Impl>(Impl{from, to, nullptr})) {
  CHECK(from > 0 && to > 0, from, to);
  if (from == to) return;
  const AVChannelLayout mono = AV_CHANNEL_LAYOUT_MONO;
  impl_->context = make_resampler(mono, AV_SAMPLE_FMT_FLT, from, to);
}
Resampler::~Resampler() = default;

void Resampler::push(std::span<const float> samples, std::vector<float>& out) {
  if (!impl_->context) {
    out.insert(out.end(), samples.begin(), samples.end());
    return;
  }
  constexpr size_t kPiece = 1 << 16;  // FFmpeg counts in int
  for (; !samples.empty(); samples = samples.subspan(std::min(kPiece, samples.size()))) {
    const auto* plane = reinterpret_cast<const uint8_t*>(samples.data());
    convert(impl_->context.get(), &plane, int(std::min(kPiece, samples.size())), out);
  }
}

void Resampler::finish(std::vector<float>& out) {
  if (impl_->context) convert(impl_->context.get(), nullptr, 0, out);
}

int Resampler::look_ahead() const {
  if (!impl_->context) return 0;
  // Half of a filter of 32 samples at the lower of the two rates, and what its start mirrors.
  constexpr int kTaps = 32;
  return impl_->to >= impl_->from ? int(std::ceil(double(kTaps) * impl_->to / impl_->from)) : kTaps;
}

std::unique_ptr<SoundSource> open_sound(const std::string& path, int rate) {
  CHECK(rate > 0, rate);
  auto source = std::make_unique<FileSource>(path, rate);
  if (!source->is_ready()) refuse_media(path, "it holds no samples");
  return source;
}

std::unique_ptr<SoundSource> resampled(std::unique_ptr<SoundSource> source, int rate) {
  CHECK(rate > 0, rate);
  if (source->rate() == rate) return source;
  return std::make_unique<ResampledSource>(std::move(source), rate);
}

}  // namespace weft
