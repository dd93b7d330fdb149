// The forms of one piece per picture: H.264 in Annex B, and JPEG.
#include "io/sound/media_pieces.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <span>
#include <string_view>

#include "io/media/output_media.h"
#include "kernels/check.h"

namespace weft {

using ffmpeg::EncoderUse;
using ffmpeg::Owner;
using ffmpeg::PictureColours;

namespace {

constexpr const char* kName = "a stream";  // in errors

struct PictureForm {
  const char* encoder;
  EncoderUse use;
  PictureColours colours;
  std::string (*mime)(std::span<const uint8_t> first_picture);
};

// Rounds to the nearest value, where 1 would be 32768.
std::vector<uint8_t> s16_of(std::span<const float> samples) {
  std::vector<uint8_t> bytes;
  bytes.reserve(2 * samples.size());
  for (const float sample : samples) {
    const long value = std::clamp(std::lround(sample * 32768), -32768L, 32767L);
    bytes.push_back(uint8_t(value & 255));
    bytes.push_back(uint8_t(value >> 8 & 255));
  }
  return bytes;
}

class PictureSink final : public MovieSink {
 public:
  PictureSink(TakePiece take, const MovieSettings& settings, const PictureForm& form)
      : settings_(settings),
        form_(form),
        take_(std::move(take)),
        picture_(settings.video.width, settings.video.height, form.colours) {
    ffmpeg::silence_log();
    VideoSettings video = settings.video;
    video.encoder.clear();
    encoder_ = ffmpeg::open_video_encoder(video, form.encoder, false, form.use);
  }

  void push(const Frame& picture, std::span<const float> sound, bool key) override {
    const VideoSettings& video = settings_.video;
    CHECK(picture.width == video.width && picture.height == video.height, picture.width,
          picture.height);
    const int64_t index = counts_.pictures, first_sample = counts_.samples;
    AVFrame* frame = picture_.fill(picture, index);
    frame->quality = encoder_->global_quality;
    if (key || index == next_key_) {
      frame->pict_type = AV_PICTURE_TYPE_I;
      next_key_ = index + int64_t{settings_.fragment} * settings_.key_every;
    }
    encode(frame);
    counts_.add_push(sound.size(), settings_);
    CHECK(pieces_ == counts_.pictures, pieces_, counts_.pictures);
    if (!sound.empty())
      take_({.kind = PieceKind::kSound,
             .first = first_sample,
             .count = int64_t(sound.size()),
             .bytes = s16_of(sound)});
  }

  std::string finish() override {
    if (counts_.pictures == 0)
      throw Error(ErrorKind::kOutput, std::string("no frame to write to '") + kName + "'");
    encode(nullptr);
    return "";
  }

  MovieCounts counts() const override { return counts_; }

 private:
  void encode(const AVFrame* frame) {
    ffmpeg::encode(encoder_.get(), frame, packet_.get(), kName, [&](AVPacket* packet) {
      const std::span<const uint8_t> bytes(packet->data, size_t(packet->size));
      if (pieces_ == 0) take_({.kind = PieceKind::kHeader, .mime = form_.mime(bytes)});
      take_({.kind = PieceKind::kPictures,
             .first = pieces_++,
             .count = 1,
             .key = (packet->flags & AV_PKT_FLAG_KEY) != 0,
             .bytes = {bytes.begin(), bytes.end()}});
    });
  }

  const MovieSettings settings_;
  const PictureForm form_;
  const TakePiece take_;
  ffmpeg::PictureBuffer picture_;
  Owner<AVCodecContext> encoder_;
  Owner<AVPacket> packet_{av_packet_alloc()};
  int64_t pieces_ = 0;    // of pictures
  int64_t next_key_ = 0;  // picture
  MovieCounts counts_;
};

// Profile, constraints and level stand at the front of the sequence parameter set (ITU-T H.264,
// 7.3.2.1.1), whose type is 7.
std::string h264_mime(std::span<const uint8_t> access_unit) {
  for (size_t at = 0; at + 7 <= access_unit.size(); ++at) {
    const uint8_t* unit = access_unit.data() + at;
    if (unit[0] != 0 || unit[1] != 0 || unit[2] != 1 || (unit[3] & 31) != 7) continue;
    char text[16];
    std::snprintf(text, sizeof text, "avc1.%02X%02X%02X", unit[4], unit[5], unit[6]);
    return text;
  }
  throw Error(ErrorKind::kOutput, "the H.264 encoder gave no parameter set with its first picture");
}

}  // namespace

std::unique_ptr<MovieSink> make_annexb_pieces(TakePiece take, const MovieSettings& settings) {
  settings.check();
  return std::make_unique<PictureSink>(
      std::move(take), settings,
      PictureForm{"libx264", EncoderUse::kLiveBaseline, PictureColours::kVideo, h264_mime});
}

std::unique_ptr<MovieSink> make_jpeg_pieces(TakePiece take, const MovieSettings& settings) {
  settings.check();
  return std::make_unique<PictureSink>(
      std::move(take), settings,
      PictureForm{"mjpeg", EncoderUse::kLive, PictureColours::kJpeg,
                  [](auto) { return std::string("image/jpeg"); }});
}

}  // namespace weft
