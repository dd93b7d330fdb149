// The parts that writers of clips share.
#include "io/media/output_media.h"

#include <algorithm>
#include <cerrno>

#include "kernels/check.h"

namespace weft::ffmpeg {

namespace {

// These are visually lossless for drawn and generated material. On x264's scale 18 is usually
// considered so.
constexpr const char* kX264Crf = "16";
constexpr int kNoLookaheadSide = 32;  // pixels: two macroblocks
constexpr const char* kVp9Crf = "20";
// Quantiser of JPEG pictures, 2 (finest) to 31.
constexpr int kJpegQuantiser = 3;
// x264's distance between key pictures when only the caller asks for them.
constexpr int kKeysOnRequest = 1 << 30;

std::string even_advice(const char* field, int value) {
  return std::string(field) + " " + std::to_string(value) +
         ": this video format stores colour at half size and needs an even " + field + "; use " +
         std::to_string(value - 1) + " or " + std::to_string(value + 1) +
         ", or write a folder of PNG frames (a path ending in '/')";
}

}  // namespace

void fail_write(const std::string& path, int error) {
  if (error == AVERROR(ENOMEM)) throw Error(ErrorKind::kMemory, "out of memory in the encoder");
  const int number = AVUNERROR(error);
  if (number > 0 && number < 4096) throw_system_error("write", path, number);
  throw Error(ErrorKind::kOutput, "cannot write '" + path + "': " + ffmpeg::reason(error));
}

void check_video_settings(const VideoSettings& settings) {
  CHECK(settings.width > 0 && settings.height > 0, settings.width, settings.height);
  CHECK(settings.fps_num > 0 && settings.fps_den > 0, settings.fps_num, settings.fps_den);
  if (settings.width % 2) throw Error(ErrorKind::kUsage, even_advice("width", settings.width));
  if (settings.height % 2) throw Error(ErrorKind::kUsage, even_advice("height", settings.height));
}

void set_metadata(AVFormatContext* context, const std::map<std::string, std::string>& metadata) {
  for (const auto& [key, value] : metadata)
    av_dict_set(&context->metadata, key.c_str(), value.c_str(), 0);
  const auto ours = metadata.find("weft");
  if (ours != metadata.end() && !metadata.contains("comment"))
    av_dict_set(&context->metadata, "comment", ours->second.c_str(), 0);
}

Owner<AVFormatContext> open_muxer(const std::string& path, const char* format) {
  AVFormatContext* context = nullptr;
  const int result = avformat_alloc_output_context2(&context, nullptr, format, path.c_str());
  if (result < 0)
    throw Error(ErrorKind::kOutput,
                std::string("FFmpeg has no ") + format + " writer: " + ffmpeg::reason(result));
  return Owner<AVFormatContext>(context);
}

void open_file(AVFormatContext* context, const std::string& path) {
  // The prefix makes FFmpeg take a name such as "http:x.mp4" as a file name.
  const int result = avio_open(&context->pb, ("file:" + path).c_str(), AVIO_FLAG_WRITE);
  if (result < 0) fail_write(path, result);
}

// Flushes and closes the file, and reports errors of both.
void close_file(AVFormatContext* context, const std::string& path) {
  avio_flush(context->pb);
  const int late = context->pb->error;
  const int result = avio_closep(&context->pb);
  if (late < 0) fail_write(path, late);
  if (result < 0) fail_write(path, result);
}

namespace {

void set_colours(AVCodecContext* encoder, PictureColours colours) {
  const bool is_jpeg = colours == PictureColours::kJpeg;
  encoder->color_range = is_jpeg ? AVCOL_RANGE_JPEG : AVCOL_RANGE_MPEG;
  encoder->colorspace = is_jpeg ? AVCOL_SPC_BT470BG : AVCOL_SPC_BT709;
  encoder->color_primaries = AVCOL_PRI_BT709;
  encoder->color_trc = AVCOL_TRC_BT709;
  encoder->chroma_sample_location = is_jpeg ? AVCHROMA_LOC_CENTER : AVCHROMA_LOC_LEFT;
}

void set_x264(AVCodecContext* encoder, EncoderUse use, Options& options) {
  const bool is_live = use != EncoderUse::kFile;
  encoder->profile = use == EncoderUse::kLiveBaseline ? FF_PROFILE_H264_BASELINE  // constrained
                                                      : FF_PROFILE_H264_HIGH;
  options.set("preset", is_live ? "veryfast" : "medium");
  options.set("crf", kX264Crf);
  if (is_live) {
    encoder->gop_size = kKeysOnRequest;
    options.set("tune", "zerolatency");
    options.set("forced-idr", "1");
    options.set("sc_threshold", "0");
  }
  // For a picture this small, the cost estimates of x264's lookahead depend on memory beside
  // the picture: about one encode in 500 gave other bytes.
  if (std::min(encoder->width, encoder->height) <= kNoLookaheadSide)
    options.set("rc-lookahead", "0");
}

void set_mjpeg(AVCodecContext* encoder) {
  set_colours(encoder, PictureColours::kJpeg);
  encoder->sample_aspect_ratio = {1, 1};  // makes the header that names the colours, JFIF
  encoder->thread_count = 1;              // threads would hold pictures back
  encoder->flags |= AV_CODEC_FLAG_QSCALE;
  encoder->global_quality = kJpegQuantiser * FF_QP2LAMBDA;
}

void set_vp9(const VideoSettings& settings, Options& options) {
  options.set("crf", kVp9Crf);
  options.set("b", "0");
  options.set("cpu-used", "4");
  options.set("row-mt", settings.deterministic ? "0" : "1");
}

}  // namespace

Owner<AVCodecContext> open_video_encoder(const VideoSettings& settings, const std::string& standard,
                                         bool global_header, EncoderUse use) {
  const std::string name = settings.encoder.empty() ? standard : settings.encoder;
  const AVCodec* codec = avcodec_find_encoder_by_name(name.c_str());
  if (codec == nullptr || codec->type != AVMEDIA_TYPE_VIDEO)
    throw Error(ErrorKind::kOutput, "this FFmpeg has no video encoder '" + name +
                                        "'; install one with " + standard +
                                        " or write a folder of PNG frames");
  Owner<AVCodecContext> encoder(avcodec_alloc_context3(codec));
  encoder->width = settings.width;
  encoder->height = settings.height;
  encoder->pix_fmt = AV_PIX_FMT_YUV420P;
  encoder->time_base = {settings.fps_den, settings.fps_num};
  encoder->framerate = {settings.fps_num, settings.fps_den};
  set_colours(encoder.get(), PictureColours::kVideo);
  // There is a key frame every two seconds. A clip of a killed job is readable up to the last
  // one.
  encoder->gop_size = std::clamp(2 * settings.fps_num / settings.fps_den, 12, 250);
  encoder->thread_count = settings.deterministic ? 1 : settings.threads;
  if (global_header) encoder->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
  if (settings.deterministic) encoder->flags |= AV_CODEC_FLAG_BITEXACT;
  Options options;
  if (name == "libx264") set_x264(encoder.get(), use, options);
  if (name == "libvpx-vp9") set_vp9(settings, options);
  if (name == "mjpeg") set_mjpeg(encoder.get());
  if (const int result = avcodec_open2(encoder.get(), codec, options.address()); result < 0)
    throw Error(ErrorKind::kOutput, "cannot open the video encoder '" + name + "' for " +
                                        std::to_string(settings.width) + "x" +
                                        std::to_string(settings.height) + ": " +
                                        ffmpeg::reason(result));
  return encoder;
}

void encode(AVCodecContext* encoder, const AVFrame* frame, AVPacket* packet,
            const std::string& name, const std::function<void(AVPacket*)>& take) {
  if (const int result = avcodec_send_frame(encoder, frame); result < 0) fail_write(name, result);
  for (;;) {
    const int result = avcodec_receive_packet(encoder, packet);
    if (result == AVERROR(EAGAIN) || result == AVERROR_EOF) return;
    if (result < 0) fail_write(name, result);
    take(packet);
    av_packet_unref(packet);
  }
}

PictureBuffer::PictureBuffer(int width, int height, PictureColours colours)
    : converter_(make_converter(width, height, {AV_PIX_FMT_RGB24, true},
                                {AV_PIX_FMT_YUV420P, colours == PictureColours::kJpeg},
                                colours == PictureColours::kJpeg ? SWS_CS_ITU601 : SWS_CS_ITU709)) {
  picture_->format = AV_PIX_FMT_YUV420P;
  picture_->width = width;
  picture_->height = height;
  const bool is_jpeg = colours == PictureColours::kJpeg;
  picture_->color_range = is_jpeg ? AVCOL_RANGE_JPEG : AVCOL_RANGE_MPEG;
  picture_->colorspace = is_jpeg ? AVCOL_SPC_BT470BG : AVCOL_SPC_BT709;
}

AVFrame* PictureBuffer::fill(const Frame& frame, int64_t pts) {
  // The encoder may still read the last buffer, so each frame gets a new one from FFmpeg's pool.
  av_buffer_unref(&picture_->buf[0]);
  for (int plane = 1; plane < 3; ++plane) av_buffer_unref(&picture_->buf[plane]);
  if (av_frame_get_buffer(picture_.get(), 0) < 0)
    throw Error(ErrorKind::kMemory, "out of memory for a video frame");
  const uint8_t* source[] = {frame.rgb.data()};
  const int stride[] = {3 * frame.width};
  sws_scale(converter_.get(), source, stride, 0, frame.height, picture_->data, picture_->linesize);
  picture_->pict_type = AV_PICTURE_TYPE_NONE;
  picture_->pts = pts;
  return picture_.get();
}

Owner<SwsContext> make_converter(int width, int height, PixelFormat from, PixelFormat to,
                                 int colorspace) {
  Owner<SwsContext> converter(sws_getContext(
      width, height, from.format, width, height, to.format,
      SWS_BICUBIC | SWS_ACCURATE_RND | SWS_FULL_CHR_H_INT | SWS_FULL_CHR_H_INP | SWS_BITEXACT,
      nullptr, nullptr, nullptr));
  if (!converter)
    throw Error(ErrorKind::kMedia, "no conversion from this pixel format at " +
                                       std::to_string(width) + "x" + std::to_string(height));
  const int* table = sws_getCoefficients(colorspace);
  constexpr int kOne = 1 << 16;  // 1.0, for contrast and saturation
  sws_setColorspaceDetails(converter.get(), table, from.full_range, table, to.full_range, 0, kOne,
                           kOne);
  return converter;
}

}  // namespace weft::ffmpeg
