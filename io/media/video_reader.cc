// Reads clips that may be hostile: with few demuxers, only the protocol "file", and limits on every
// size.
#include <chrono>
#include <optional>

#include "io/media/ffmpeg.h"
#include "io/media/input_media.h"
#include "io/media/video.h"
#include "kernels/check.h"

namespace weft {

using ffmpeg::Owner;

namespace {

constexpr const char* kFormats = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,gif";
constexpr const char* kCodecs = "h264,hevc,vp8,vp9,libvpx,libvpx-vp9,libdav1d,av1,gif";
constexpr int64_t kMaxPixels = int64_t{64} << 20;
constexpr int64_t kMaxFrames = 20000;
constexpr int64_t kMaxSeconds = 600;
constexpr auto kMaxWork = std::chrono::seconds(30);

// FFmpeg calls this between reads.
int past_deadline(void* deadline) {
  return std::chrono::steady_clock::now() > *static_cast<ffmpeg::Deadline*>(deadline);
}

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(ErrorKind::kMedia, "cannot read '" + path + "': " + why);
}

}  // namespace

namespace ffmpeg {

InputMedia::InputMedia(const std::string& path) : path_(path) {
  silence_log();
  deadline_ = std::chrono::steady_clock::now() + kMaxWork;
  AVFormatContext* context = avformat_alloc_context();
  if (!context) throw Error(ErrorKind::kMemory, "out of memory for a media file");
  context->interrupt_callback = {past_deadline, &deadline_};
  context->max_streams = 8;
  Options options;
  options.set("format_whitelist", kFormats);
  options.set("codec_whitelist", kCodecs);
  options.set("protocol_whitelist", "file");
  options.set("probesize", "8388608");
  // On failure avformat_open_input frees the context.
  int result = avformat_open_input(&context, ("file:" + path).c_str(), nullptr, options.address());
  if (result < 0)
    refuse(path, result == AVERROR_INVALIDDATA
                     ? "not an MP4, WebM, Matroska or GIF file, or damaged"
                     : reason(result));
  format_.reset(context);
  if (result = avformat_find_stream_info(format_.get(), nullptr); result < 0)
    refuse(path, reason(result));
  stream_ = av_find_best_stream(format_.get(), AVMEDIA_TYPE_VIDEO, -1, -1, nullptr, 0);
  if (stream_ < 0) refuse(path, "no video stream that this program decodes");
  const AVCodecParameters* parameters = stream()->codecpar;
  if (parameters->width <= 0 || parameters->height <= 0 ||
      int64_t{parameters->width} * parameters->height > kMaxPixels)
    refuse(path, "frames of " + std::to_string(parameters->width) + "x" +
                     std::to_string(parameters->height) + " pixels; at most 64 Mpixel");
  if (format_->duration > kMaxSeconds * AV_TIME_BASE) refuse(path, "longer than 10 minutes");
}

bool InputMedia::read(AVPacket* packet) {
  for (;;) {
    const int result = av_read_frame(format_.get(), packet);
    if (std::chrono::steady_clock::now() > deadline_) refuse(path_, "took longer than 30 s");
    if (result == AVERROR_EOF) return false;
    if (result < 0) refuse(path_, reason(result));
    if (packet->stream_index == stream_) {
      if (++packets_ > kMaxFrames) refuse(path_, "more than 20,000 frames");
      return true;
    }
    av_packet_unref(packet);
  }
}

void InputMedia::extend_deadline(Deadline::duration pause) { deadline_ += pause; }

}  // namespace ffmpeg

struct VideoReader::Impl {
  explicit Impl(const std::string& path) : media(path) {
    const AVCodecParameters* parameters = media.stream()->codecpar;
    const AVCodec* codec = avcodec_find_decoder(parameters->codec_id);
    if (!codec) refuse(path, "no decoder for its codec");
    decoder.reset(avcodec_alloc_context3(codec));
    avcodec_parameters_to_context(decoder.get(), parameters);
    decoder->thread_count = 1;
    decoder->max_pixels = kMaxPixels;
    ffmpeg::Options options;
    options.set("codec_whitelist", kCodecs);
    if (const int result = avcodec_open2(decoder.get(), codec, options.address()); result < 0)
      refuse(path, ffmpeg::reason(result));
    width = parameters->width;
    height = parameters->height;
  }

  // Decodes the next picture. Returns false at the end.
  bool decode() {
    for (;;) {
      const int result = avcodec_receive_frame(decoder.get(), picture.get());
      if (result >= 0) return true;
      if (result == AVERROR_EOF) return false;
      if (result != AVERROR(EAGAIN)) refuse(media.path(), ffmpeg::reason(result));
      const bool more = media.read(packet.get());
      const int sent = avcodec_send_packet(decoder.get(), more ? packet.get() : nullptr);
      av_packet_unref(packet.get());
      if (sent < 0) refuse(media.path(), ffmpeg::reason(sent));
    }
  }

  void convert(Frame& frame) {
    if (picture->width != width || picture->height != height)
      refuse(media.path(), "the frame size changes within the clip");
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
  Owner<AVCodecContext> decoder;
  Owner<SwsContext> converter;
  AVPixelFormat converter_format = AV_PIX_FMT_NONE;
  Owner<AVFrame> picture{av_frame_alloc()};
  Owner<AVPacket> packet{av_packet_alloc()};
  int width = 0, height = 0;
  std::optional<ffmpeg::Deadline> paused;
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
  const auto now = [] { return std::chrono::steady_clock::now(); };
  if (impl_->paused) impl_->media.extend_deadline(now() - *impl_->paused);
  const bool more = impl_->decode();
  if (more) impl_->convert(frame);
  impl_->paused = now();
  return more;
}

std::vector<Frame> read_video(const std::string& path) {
  VideoReader reader(path);
  std::vector<Frame> frames;
  for (Frame frame; reader.next(frame);) frames.push_back(frame);
  return frames;
}

}  // namespace weft
