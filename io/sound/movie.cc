#include "io/sound/movie.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <vector>

#include "io/media/output_media.h"
#include "io/sound/media_pieces.h"
#include "kernels/check.h"

namespace weft {

using ffmpeg::fail_write;
using ffmpeg::Options;
using ffmpeg::Owner;

namespace {

constexpr int kBufferBytes = 1 << 16;

// Takes the bytes of a live movie in order. Returns 0, or an error of FFmpeg.
using TakeBytes = std::function<int(std::span<const uint8_t> bytes)>;

// Takes a live movie.
struct LiveOutput {
  TakeBytes bytes;
  // Called when all bytes of a fragment, and of the header before the first one, were taken.
  std::function<void(int64_t first, int64_t pictures, bool key)> ended = [](auto...) {};
};

int write_all(int descriptor, std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(descriptor, bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return AVERROR(errno);
    bytes = bytes.subspan(size_t(wrote));
  }
  return 0;
}

// FFmpeg's writer of a live movie.
int hand_over(void* take, uint8_t* bytes, int size) {
  const int error = (*static_cast<TakeBytes*>(take))({bytes, size_t(size)});
  return error < 0 ? error : size;
}

class Movie final : public MovieSink {
 public:
  // A file at `path`, or where that is empty a live movie.
  Movie(const std::string& path, Overwrite overwrite, LiveOutput live, const std::string& name,
        const MovieSettings& settings)
      : settings_(settings),
        live_(std::move(live)),
        picture_(settings.video.width, settings.video.height) {
    ffmpeg::silence_log();
    if (!path.empty()) part_.emplace(path, overwrite);
    name_ = part_ ? part_->path() : name;
    muxer_ = ffmpeg::open_muxer(name_, "mp4");
    const bool global = muxer_->oformat->flags & AVFMT_GLOBALHEADER;
    video_ =
        ffmpeg::open_video_encoder(settings.video, "libx264", global,
                                   part_ ? ffmpeg::EncoderUse::kFile : ffmpeg::EncoderUse::kLive);
    open_audio_encoder(global);
    for (const AVCodecContext* encoder : {video_.get(), audio_.get()}) {
      AVStream* stream = avformat_new_stream(muxer_.get(), nullptr);
      CHECK(stream != nullptr);
      stream->time_base = encoder->time_base;
      avcodec_parameters_from_context(stream->codecpar, encoder);
    }
    muxer_->streams[0]->avg_frame_rate = video_->framerate;
    ffmpeg::set_metadata(muxer_.get(), settings.video.metadata);
    if (settings.video.deterministic) muxer_->flags |= AVFMT_FLAG_BITEXACT;
    open_output();
  }

  ~Movie() override { close_output(); }

  void push(const Frame& picture, std::span<const float> sound, bool key) override {
    const VideoSettings& video = settings_.video;
    CHECK(picture.width == video.width && picture.height == video.height, picture.width,
          picture.height);
    if (key && in_fragment_ > 0) end_fragment();
    AVFrame* frame = picture_.fill(picture, counts_.pictures);
    if (key || begins_with_key()) {
      frame->pict_type = AV_PICTURE_TYPE_I;
      fragments_ = 0;
    }
    counts_.add_push(sound.size(), settings_);
    ++in_fragment_;
    encode(video_.get(), frame, 0);
    waiting_.insert(waiting_.end(), sound.begin(), sound.end());
    encode_sound(size_t(audio_->frame_size));
    if (in_fragment_ == settings_.fragment) end_fragment();
  }

  std::string finish() override {
    if (counts_.pictures == 0)
      throw Error(ErrorKind::kOutput, "no frame to write to '" + name_ + "'");
    encode_sound(1);
    encode(video_.get(), nullptr, 0);
    encode(audio_.get(), nullptr, 1);
    end_fragment();
    if (const int result = av_write_trailer(muxer_.get()); result < 0) fail_write(name_, result);
    if (!part_) {
      flush();
      return "";
    }
    ffmpeg::close_file(muxer_.get(), name_);
    part_->publish();
    return part_->final_path();
  }

  MovieCounts counts() const override { return counts_; }

 private:
  void open_audio_encoder(bool global_header) {
    const AVCodec* codec = avcodec_find_encoder(AV_CODEC_ID_AAC);
    if (!codec) throw Error(ErrorKind::kOutput, "this FFmpeg has no AAC encoder");
    audio_.reset(avcodec_alloc_context3(codec));
    audio_->sample_fmt = AV_SAMPLE_FMT_FLTP;
    audio_->sample_rate = settings_.sample_rate;
    audio_->ch_layout = AV_CHANNEL_LAYOUT_MONO;
    audio_->bit_rate = settings_.audio_bit_rate;
    audio_->time_base = {1, settings_.sample_rate};
    if (global_header) audio_->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
    if (settings_.video.deterministic) audio_->flags |= AV_CODEC_FLAG_BITEXACT;
    if (const int result = avcodec_open2(audio_.get(), codec, nullptr); result < 0)
      throw Error(ErrorKind::kOutput, "cannot open the AAC encoder for " +
                                          std::to_string(settings_.sample_rate) +
                                          " samples per second: " + ffmpeg::reason(result));
  }

  void open_output() {
    Options options;
    if (part_) {
      ffmpeg::open_file(muxer_.get(), name_);
      options.set("movflags", "faststart+use_metadata_tags");
    } else {
      auto* buffer = static_cast<uint8_t*>(av_malloc(kBufferBytes));
      if (!buffer) throw Error(ErrorKind::kMemory, "out of memory for a stream");
      muxer_->pb =
          avio_alloc_context(buffer, kBufferBytes, 1, &live_.bytes, nullptr, hand_over, nullptr);
      muxer_->flags |= AVFMT_FLAG_CUSTOM_IO;
      // The header waits for the first fragment, so that its edit lists have the delays.
      options.set("movflags", "frag_custom+delay_moov+default_base_moof+use_metadata_tags");
    }
    // The encoders' delays stay in the times, and edit lists take them back.
    muxer_->avoid_negative_ts = AVFMT_AVOID_NEG_TS_DISABLED;
    if (const int result = avformat_write_header(muxer_.get(), options.address()); result < 0) {
      close_output();
      fail_write(name_, result);
    }
  }

  void close_output() {
    if (!muxer_ || !muxer_->pb) return;
    if (part_) {
      avio_closep(&muxer_->pb);
    } else {
      av_freep(&muxer_->pb->buffer);
      avio_context_free(&muxer_->pb);
    }
  }

  bool begins_with_key() const { return !part_ && in_fragment_ == 0 && fragments_ == 0; }

  // Writes what was encoded since the last fragment, and the header before the first one.
  void end_fragment() {
    if (part_) return;
    write(nullptr);
    for (int pieces = fragments_written_ ? 1 : 2; pieces > 0; --pieces)
      if (const int result = av_write_frame(muxer_.get(), nullptr); result < 0)
        fail_write(name_, result);
    flush();
    live_.ended(counts_.pictures - in_fragment_, in_fragment_, in_fragment_ > 0 && fragments_ == 0);
    fragments_written_ = true;
    fragments_ = (fragments_ + 1) % settings_.key_every;
    in_fragment_ = 0;
  }

  void flush() {
    avio_flush(muxer_->pb);
    if (muxer_->pb->error < 0) fail_write(name_, muxer_->pb->error);
  }

  // Null writes the packets that wait for packets of the other stream.
  void write(AVPacket* packet) {
    const int written = av_interleaved_write_frame(muxer_.get(), packet);
    if (written < 0) fail_write(name_, written);
    if (muxer_->pb->error < 0) fail_write(name_, muxer_->pb->error);
  }

  // Encodes what waits, in frames of the encoder's size and, if at least `least` samples are there,
  // a smaller one.
  void encode_sound(size_t least) {
    size_t next = 0;
    while (waiting_.size() - next >= least && waiting_.size() > next) {
      const size_t count = std::min(waiting_.size() - next, size_t(audio_->frame_size));
      Owner<AVFrame> frame(av_frame_alloc());
      frame->format = AV_SAMPLE_FMT_FLTP;
      frame->sample_rate = settings_.sample_rate;
      frame->ch_layout = AV_CHANNEL_LAYOUT_MONO;
      frame->nb_samples = int(count);
      if (av_frame_get_buffer(frame.get(), 0) < 0)
        throw Error(ErrorKind::kMemory, "out of memory for sound");
      std::copy_n(waiting_.begin() + int64_t(next), count,
                  reinterpret_cast<float*>(frame->data[0]));
      frame->pts = encoded_samples_;
      encoded_samples_ += int64_t(count);
      next += count;
      encode(audio_.get(), frame.get(), 1);
    }
    waiting_.erase(waiting_.begin(), waiting_.begin() + int64_t(next));
  }

  void encode(AVCodecContext* encoder, const AVFrame* frame, int stream) {
    ffmpeg::encode(encoder, frame, packet_.get(), name_, [&](AVPacket* packet) {
      packet->stream_index = stream;
      if (stream == 0) packet->duration = 1;
      av_packet_rescale_ts(packet, encoder->time_base, muxer_->streams[stream]->time_base);
      write(packet);
    });
  }

  const MovieSettings settings_;
  LiveOutput live_;
  std::string name_;  // that errors give
  std::optional<PartFile> part_;
  ffmpeg::PictureBuffer picture_;
  Owner<AVFormatContext> muxer_;
  Owner<AVCodecContext> video_, audio_;
  Owner<AVPacket> packet_{av_packet_alloc()};
  std::vector<float> waiting_;  // samples of a frame of sound that is not full
  int64_t encoded_samples_ = 0;
  int in_fragment_ = 0;             // pictures of the fragment that is not written
  int fragments_ = 0;               // after the last one that begins with a key picture
  bool fragments_written_ = false;  // any
  MovieCounts counts_;
};

// The bytes in front of the first fragment.
size_t header_size(std::span<const uint8_t> bytes) {
  size_t at = 0;
  while (std::memcmp(bytes.data() + at + 4, "moof", 4) != 0) {
    at += size_t(bytes[at]) << 24 | bytes[at + 1] << 16 | bytes[at + 2] << 8 | bytes[at + 3];
    CHECK(at + 8 <= bytes.size(), at, bytes.size());
  }
  return at;
}

// Profile, constraints and level stand after the version in the box avcC (ISO/IEC 14496-15).
std::string mime_of(std::span<const uint8_t> header) {
  constexpr std::string_view kBox = "avcC";
  const auto box = std::search(header.begin(), header.end(), kBox.begin(), kBox.end());
  CHECK(header.end() - box > 8);
  char text[64];
  std::snprintf(text, sizeof text, "video/mp4; codecs=\"avc1.%02X%02X%02X, mp4a.40.2\"", box[5],
                box[6], box[7]);
  return text;
}

}  // namespace

void MovieSettings::check() const {
  ffmpeg::check_video_settings(video);
  CHECK(sample_rate > 0 && fragment > 0 && key_every > 0, sample_rate, fragment, key_every);
}

void MovieCounts::add_push(size_t samples_pushed, const MovieSettings& settings) {
  ++pictures;
  samples += int64_t(samples_pushed);
  const double shown = double(pictures) * settings.video.fps_den / settings.video.fps_num;
  const double heard = double(samples) / settings.sample_rate;
  max_skew = std::max(max_skew, std::abs(shown - heard));
}

std::unique_ptr<MovieSink> make_movie(const std::string& path, const MovieSettings& settings,
                                      Overwrite overwrite) {
  if (file_ending(path) != ".mp4")
    throw Error(ErrorKind::kUsage,
                "output '" + path + "': a movie with sound is written as .mp4 only");
  settings.check();
  return std::make_unique<Movie>(path, overwrite, LiveOutput(), "", settings);
}

std::unique_ptr<MovieSink> make_live_movie(int descriptor, const std::string& name,
                                           const MovieSettings& settings) {
  settings.check();
  return std::make_unique<Movie>("", Overwrite::kReplace, LiveOutput{[descriptor](auto bytes) {
                                   return write_all(descriptor, bytes);
                                 }},
                                 name, settings);
}

std::unique_ptr<MovieSink> make_movie_pieces(TakePiece take, const MovieSettings& settings) {
  settings.check();
  const auto bytes = std::make_shared<std::vector<uint8_t>>();
  const auto ended = [bytes, take = std::move(take)](int64_t first, int64_t pictures, bool key) {
    const size_t media = header_size(*bytes);
    const auto begin = bytes->begin(), fragment = begin + ptrdiff_t(media);
    if (media > 0)
      take({.kind = PieceKind::kHeader,
            .mime = mime_of({begin, fragment}),
            .bytes = {begin, fragment}});
    take({.kind = PieceKind::kPictures,
          .first = first,
          .count = pictures,
          .key = key,
          .bytes = {fragment, bytes->end()}});
    bytes->clear();
  };
  const auto append = [bytes](std::span<const uint8_t> more) {
    bytes->insert(bytes->end(), more.begin(), more.end());
    return 0;
  };
  return std::make_unique<Movie>("", Overwrite::kReplace, LiveOutput{append, ended}, "a stream",
                                 settings);
}

}  // namespace weft
