#include "io/media/input_media.h"

#include <algorithm>
#include <fstream>
#include <string_view>

#include "kernels/check.h"

namespace weft::ffmpeg {
namespace {

constexpr int64_t kMaxFramePixels = int64_t{64} << 20;

// FFmpeg calls this between reads.
int past_deadline(void* deadline) {
  return std::chrono::steady_clock::now() > *static_cast<Deadline*>(deadline);
}

std::string duration_text(int64_t seconds) {
  return seconds >= 7200 ? std::to_string(seconds / 3600) + " hours"
                         : std::to_string(seconds / 60) + " minutes";
}

// Says what a file is that no allowed demuxer opens.
std::string kind_of(const std::string& path, const InputLimits& limits) {
  constexpr size_t kRead = 1 << 16;
  std::string bytes(kRead, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(bytes.data(), kRead);
  const auto size = static_cast<int>(file.gcount());
  bytes.resize(static_cast<size_t>(size) + AVPROBE_PADDING_SIZE);
  const AVProbeData probe{.filename = "",
                          .buf = reinterpret_cast<unsigned char*>(bytes.data()),
                          .buf_size = size,
                          .mime_type = nullptr};
  const AVInputFormat* format = av_probe_input_format(&probe, 1);
  const std::string name = format ? format->name : "", allowed = limits.formats;
  if (!format || ("," + allowed + ",").find("," + name + ",") != std::string::npos)
    return "not " + std::string(limits.expected) + ", or damaged";
  constexpr std::string_view kPictures[] = {"apng", "gif", "ico", "image2"};
  const bool picture = name.ends_with("_pipe") || std::ranges::count(kPictures, name) > 0;
  return std::string(picture ? "it is a picture" : "it is of another kind") + " (" +
         format->long_name + "); legal: " + limits.expected;
}

}  // namespace

void refuse_media(const std::string& path, const std::string& why) {
  throw Error(ErrorKind::kMedia, "cannot read '" + path + "': " + why);
}

const InputLimits kClipLimits{AVMEDIA_TYPE_VIDEO,
                              "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,gif",
                              "h264,hevc,vp8,vp9,libvpx,libvpx-vp9,libdav1d,av1,gif",
                              "an MP4, WebM, Matroska or GIF file",
                              20000,
                              600,
                              std::chrono::seconds(30)};

InputMedia::InputMedia(const std::string& path, const InputLimits& limits)
    : path_(path), limits_(limits) {
  silence_log();
  deadline_ = std::chrono::steady_clock::now() + limits.max_work;
  AVFormatContext* context = avformat_alloc_context();
  if (!context) throw Error(ErrorKind::kMemory, "out of memory for a media file");
  context->interrupt_callback = {past_deadline, &deadline_};
  context->max_streams = 8;
  Options options;
  options.set("format_whitelist", limits.formats);
  options.set("codec_whitelist", limits.codecs);
  options.set("protocol_whitelist", "file");
  options.set("probesize", "8388608");
  // On failure avformat_open_input frees the context.
  int result = avformat_open_input(&context, ("file:" + path).c_str(), nullptr, options.address());
  if (result < 0)
    refuse_media(path, result == AVERROR_INVALIDDATA || result == AVERROR(EINVAL)
                           ? kind_of(path, limits)
                           : reason(result));
  format_.reset(context);
  if (result = avformat_find_stream_info(format_.get(), nullptr); result < 0)
    refuse_media(path, reason(result));
  stream_ = av_find_best_stream(format_.get(), limits.type, -1, -1, nullptr, 0);
  if (stream_ < 0)
    refuse_media(path, std::string("no ") + av_get_media_type_string(limits.type) +
                           " stream that this program decodes");
  const AVCodecParameters* parameters = stream()->codecpar;
  if (limits.type == AVMEDIA_TYPE_VIDEO &&
      (parameters->width <= 0 || parameters->height <= 0 ||
       int64_t{parameters->width} * parameters->height > kMaxFramePixels))
    refuse_media(path, "frames of " + std::to_string(parameters->width) + "x" +
                           std::to_string(parameters->height) + " pixels; at most 64 Mpixel");
  if (format_->duration > limits.max_seconds * AV_TIME_BASE)
    refuse_media(path, "longer than " + duration_text(limits.max_seconds));
}

bool InputMedia::read(AVPacket* packet) {
  for (;;) {
    const int result = av_read_frame(format_.get(), packet);
    if (std::chrono::steady_clock::now() > deadline_)
      refuse_media(path_, "took longer than " + std::to_string(limits_.max_work.count()) + " s");
    if (result == AVERROR_EOF) return false;
    if (result < 0) refuse_media(path_, reason(result));
    if (packet->stream_index == stream_) {
      if (++packets_ > limits_.max_packets)
        refuse_media(path_, "more than " + std::to_string(limits_.max_packets) + " packets");
      return true;
    }
    av_packet_unref(packet);
  }
}

void InputMedia::resume() {
  if (paused_) deadline_ += std::chrono::steady_clock::now() - *paused_;
  paused_.reset();
}

MediaDecoder::MediaDecoder(InputMedia& media) : media_(media) {
  const AVCodecParameters* parameters = media.stream()->codecpar;
  const AVCodec* codec = avcodec_find_decoder(parameters->codec_id);
  if (!codec)
    refuse_media(media.path(), std::string("no decoder for its codec, ") +
                                   avcodec_get_name(parameters->codec_id));
  decoder_.reset(avcodec_alloc_context3(codec));
  avcodec_parameters_to_context(decoder_.get(), parameters);
  decoder_->pkt_timebase = media.stream()->time_base;
  decoder_->thread_count = 1;
  decoder_->max_pixels = kMaxFramePixels;
  Options options;
  options.set("codec_whitelist", media.limits().codecs);
  if (const int result = avcodec_open2(decoder_.get(), codec, options.address()); result < 0)
    refuse_media(media.path(), reason(result));
}

bool MediaDecoder::next(AVFrame* frame) {
  for (;;) {
    const int result = avcodec_receive_frame(decoder_.get(), frame);
    if (result >= 0) return true;
    if (result == AVERROR_EOF) return false;
    if (result != AVERROR(EAGAIN)) refuse_media(media_.path(), reason(result));
    const bool more = media_.read(packet_.get());
    const int sent = avcodec_send_packet(decoder_.get(), more ? packet_.get() : nullptr);
    av_packet_unref(packet_.get());
    if (sent < 0) refuse_media(media_.path(), reason(sent));
  }
}

}  // namespace weft::ffmpeg
