// Reads clips that may be hostile, within the limits of input_media.cc.
#include "io/media/input_media.h"
#include "io/media/video.h"
#include "kernels/check.h"

namespace weft {

using ffmpeg::Owner;
using ffmpeg::refuse_media;

struct VideoReader::Impl {
  explicit Impl(const std::string& path) : media(path), decoder(media) {
    width = media.stream()->codecpar->width;
    height = media.stream()->codecpar->height;
  }

  void convert(Frame& frame) {
    if (picture->width != width || picture->height != height)
      refuse_media(media.path(), "the frame size changes within the clip");
    const auto format = static_cast<AVPixelFormat>(picture->format);
    if (!converter || format != converter_format) {
      // Like players, it takes untagged files as BT.709 from HD on, and as BT.601 below.
      int space = picture->colorspace;
      if (space == AVCOL_SPC_UNSPECIFIED) space = height >= 720 ? AVCOL_SPC_BT709 : SWS_CS_ITU601;
      const bool full = picture->color_range == AVCOL_RANGE_JPEG;
      converter =
          ffmpeg::make_converter(width, height, {format, full}, {AV_PIX_FMT_RGB24, true}, space);
      converter_format = format;
    }
    frame.width = width;
    frame.height = height;
    frame.rgb.resize(size_t{3} * width * height);
    uint8_t* target[] = {frame.rgb.data()};
    const int stride[] = {3 * width};
    sws_scale(converter.get(), picture->data, picture->linesize, 0, height, target, stride);
  }

  ffmpeg::InputMedia media;
  ffmpeg::MediaDecoder decoder;
  Owner<SwsContext> converter;
  AVPixelFormat converter_format = AV_PIX_FMT_NONE;
  Owner<AVFrame> picture{av_frame_alloc()};
  int width = 0, height = 0;
};

VideoReader::VideoReader(const std::string& path) : impl_(std::make_unique<Impl>(path)) {}
VideoReader::~VideoReader() = default;

int VideoReader::width() const { return impl_->width; }
int VideoReader::height() const { return impl_->height; }

double VideoReader::fps() const {
  return av_q2d(av_guess_frame_rate(nullptr, impl_->media.stream(), nullptr));
}

bool VideoReader::next(Frame& frame) {
  // Only time spent in this function counts against the limit, not what the caller does with
  // frames.
  impl_->media.resume();
  const bool more = impl_->decoder.next(impl_->picture.get());
  if (more) impl_->convert(frame);
  impl_->media.pause();
  return more;
}

std::vector<Frame> read_video(const std::string& path) {
  VideoReader reader(path);
  std::vector<Frame> frames;
  for (Frame frame; reader.next(frame);) frames.push_back(frame);
  return frames;
}

}  // namespace weft
