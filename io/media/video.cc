// Writes clips as H.264 in MP4 and VP9 in WebM, with libavcodec and libavformat.
#include "io/media/video.h"

#include <malloc.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <span>

#include "io/media/ffmpeg.h"
#include "io/media/image.h"
#include "io/media/media_probe.h"
#include "kernels/check.h"

namespace weft {

using ffmpeg::Options;
using ffmpeg::Owner;

namespace {

// These are visually lossless for drawn and generated material. On x264's scale 18 is usually
// considered so.
constexpr const char* kX264Crf = "16";
constexpr int kNoLookaheadSide = 32;  // pixels: two macroblocks
constexpr const char* kVp9Crf = "20";

[[noreturn]] void fail_write(const std::string& path, int error) {
  if (error == AVERROR(ENOMEM)) throw Error(ErrorKind::kMemory, "out of memory in the encoder");
  const int number = AVUNERROR(error);
  if (number > 0 && number < 4096)
    throw Error(ErrorKind::kOutput, system_error_line("write", path, number));
  throw Error(ErrorKind::kOutput, "cannot write '" + path + "': " + ffmpeg::reason(error));
}

std::string even_advice(const char* field, int value) {
  return std::string(field) + " " + std::to_string(value) +
         ": this video format stores colour at half size and needs an even " + field + "; use " +
         std::to_string(value - 1) + " or " + std::to_string(value + 1) +
         ", or write a folder of PNG frames (a path ending in '/')";
}

void set_metadata(AVFormatContext* context, const VideoSettings& settings) {
  for (const auto& [key, value] : settings.metadata)
    av_dict_set(&context->metadata, key.c_str(), value.c_str(), 0);
  const auto ours = settings.metadata.find("weft");
  if (ours != settings.metadata.end() && !settings.metadata.contains("comment"))
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

enum class Container { kMp4, kWebm };

// Every keep() ends a file; the frames behind it go to the next one. All become one file at last.
class EncodedSink : public FrameSink {
 public:
  EncodedSink(const std::string& path, const VideoSettings& settings, Overwrite overwrite,
              Container container)
      : settings_(settings),
        container_(container),
        part_(path, overwrite, "part", settings.kept_frames ? Earlier::kKept : Earlier::kDropped),
        frames_(settings.kept_frames) {
    ffmpeg::silence_log();
    find_kept();
    converter_ = ffmpeg::make_converter(settings.width, settings.height, {AV_PIX_FMT_RGB24, true},
                                        {AV_PIX_FMT_YUV420P, false}, SWS_CS_ITU709);
    picture_.reset(av_frame_alloc());
    packet_.reset(av_packet_alloc());
    picture_->format = AV_PIX_FMT_YUV420P;
    picture_->width = settings.width;
    picture_->height = settings.height;
    picture_->color_range = AVCOL_RANGE_MPEG;
    picture_->colorspace = AVCOL_SPC_BT709;
    open_piece();
  }

  ~EncodedSink() override {
    if (muxer_ && muxer_->pb) avio_closep(&muxer_->pb);
  }

  void push(const Frame& frame) override {
    CHECK(frame.width == settings_.width && frame.height == settings_.height, frame.width,
          frame.height);
    if (!muxer_) open_piece();
    if (!encoder_) open_encoder();
    // The encoder may still read the last buffer, so each frame gets a new one from FFmpeg's pool.
    av_buffer_unref(&picture_->buf[0]);
    for (int plane = 1; plane < 3; ++plane) av_buffer_unref(&picture_->buf[plane]);
    if (av_frame_get_buffer(picture_.get(), 0) < 0)
      throw Error(ErrorKind::kMemory, "out of memory for a video frame");
    const uint8_t* source[] = {frame.rgb.data()};
    const int stride[] = {3 * frame.width};
    sws_scale(converter_.get(), source, stride, 0, frame.height, picture_->data,
              picture_->linesize);
    picture_->pict_type = AV_PICTURE_TYPE_NONE;
    picture_->pts = frames_++ - pieces_.back().first;
    encode(picture_.get());
    if (settings_.cuts_at(frames_)) end_encoder();
  }

  void keep() override {
    if (!muxer_ || frames_ == pieces_.back().first) return;
    close_piece();
    (later_ ? *later_ : part_).keep();
  }

  std::string finish() override {
    if (frames_ == 0)
      throw Error(ErrorKind::kOutput, "no frame to write to '" + part_.final_path() + "'");
    if (muxer_ && frames_ == pieces_.back().first) drop_piece();
    if (muxer_) close_piece();
    if (container_ == Container::kMp4 || settings_.cut > 0 || pieces_.size() > 1) join();
    if (pieces_.size() == 1) part_.publish();  // renames it
    for (; !pieces_.empty(); pieces_.pop_back()) std::filesystem::remove(pieces_.back().path);
    return part_.final_path();
  }

 private:
  // A file of the frames from `first` on.
  struct Piece {
    int64_t first;
    std::string path;
  };

  // Finds the pieces of an earlier run, and removes those behind the frames that it kept.
  void find_kept() {
    for (const int64_t first : part_.numbered_parts()) {
      const std::string path = part_.path_of("part-" + std::to_string(first));
      if (first < frames_)
        pieces_.push_back({first, path});
      else
        std::filesystem::remove(path);
    }
    if (frames_ == 0) return;
    pieces_.insert(pieces_.begin(), {0, part_.path()});
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const int64_t end = i + 1 < pieces_.size() ? pieces_[i + 1].first : frames_;
      int64_t held = 0;
      try {
        held = probe_media(pieces_[i].path).frames;
      } catch (const Error&) {  // the file is missing or was cut off
      }
      if (held != end - pieces_[i].first)
        throw Error(ErrorKind::kOutput, "'" + pieces_[i].path + "' holds " + std::to_string(held) +
                                            " frames, but an earlier run has kept " +
                                            std::to_string(end - pieces_[i].first) + " there");
    }
  }

  void open_piece() {
    if (frames_ > 0) {
      later_.reset();
      later_.emplace(part_.final_path(), Overwrite::kReplace, "part-" + std::to_string(frames_));
    }
    pieces_.push_back({frames_, (later_ ? *later_ : part_).path()});
    encoded_ = 0;
    const std::string& path = pieces_.back().path;
    muxer_ = open_muxer(path, container_ == Container::kMp4 ? "mp4" : "webm");
    open_encoder();
    AVStream* stream = avformat_new_stream(muxer_.get(), nullptr);
    CHECK(stream != nullptr);
    stream->time_base = encoder_->time_base;
    stream->avg_frame_rate = encoder_->framerate;
    avcodec_parameters_from_context(stream->codecpar, encoder_.get());
    set_metadata(muxer_.get(), settings_);
    // Encoded packets are written at once, so that a killed job does not lose them.
    muxer_->flush_packets = 1;
    if (settings_.deterministic) muxer_->flags |= AVFMT_FLAG_BITEXACT;
    open_file(muxer_.get(), path);
    Options options;
    if (container_ == Container::kMp4)
      options.set("movflags", "frag_keyframe+empty_moov+default_base_moof+use_metadata_tags");
    if (const int result = avformat_write_header(muxer_.get(), options.address()); result < 0)
      fail_write(path, result);
  }

  // An earlier run has kept all frames: the new piece has none.
  void drop_piece() {
    avio_closep(&muxer_->pb);
    muxer_.reset();
    later_.reset();
    pieces_.pop_back();
  }

  // Takes the last packets out of the encoder. The next frame gets a new one. An encoder holds tens
  // of pictures; small blocks that other threads put into their place meanwhile would make the heap
  // grow with every encoder, so the pages are given back.
  void end_encoder() {
    encode(nullptr);
    encoder_.reset();
    malloc_trim(0);
  }

  void close_piece() {
    if (encoder_) end_encoder();
    const std::string& path = pieces_.back().path;
    if (const int result = av_write_trailer(muxer_.get()); result < 0) fail_write(path, result);
    close_file(muxer_.get(), path);
    muxer_.reset();
  }

  void open_encoder() {
    const bool mp4 = container_ == Container::kMp4;
    const std::string name = !settings_.encoder.empty() ? settings_.encoder
                             : mp4                      ? "libx264"
                                                        : "libvpx-vp9";
    const AVCodec* codec = avcodec_find_encoder_by_name(name.c_str());
    if (codec == nullptr || codec->type != AVMEDIA_TYPE_VIDEO)
      throw Error(ErrorKind::kOutput, "this FFmpeg has no video encoder '" + name +
                                          "'; install one with " + (mp4 ? "libx264" : "libvpx") +
                                          " or write a folder of PNG frames");
    encoder_.reset(avcodec_alloc_context3(codec));
    encoder_->width = settings_.width;
    encoder_->height = settings_.height;
    encoder_->pix_fmt = AV_PIX_FMT_YUV420P;
    encoder_->time_base = {settings_.fps_den, settings_.fps_num};
    encoder_->framerate = {settings_.fps_num, settings_.fps_den};
    encoder_->color_range = AVCOL_RANGE_MPEG;
    encoder_->colorspace = AVCOL_SPC_BT709;
    encoder_->color_primaries = AVCOL_PRI_BT709;
    encoder_->color_trc = AVCOL_TRC_BT709;
    encoder_->chroma_sample_location = AVCHROMA_LOC_LEFT;
    // There is a key frame every two seconds. A clip of a killed job is readable up to the last
    // one.
    encoder_->gop_size = std::clamp(2 * settings_.fps_num / settings_.fps_den, 12, 250);
    encoder_->thread_count = settings_.deterministic ? 1 : settings_.threads;
    if (muxer_->oformat->flags & AVFMT_GLOBALHEADER) encoder_->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
    if (settings_.deterministic) encoder_->flags |= AV_CODEC_FLAG_BITEXACT;
    Options options;
    if (name == "libx264") {
      encoder_->profile = FF_PROFILE_H264_HIGH;
      options.set("preset", "medium");
      options.set("crf", kX264Crf);
      // For a picture this small, the cost estimates of x264's lookahead depend on memory beside
      // the picture: about one encode in 500 gave other bytes.
      if (std::min(settings_.width, settings_.height) <= kNoLookaheadSide)
        options.set("rc-lookahead", "0");
    } else if (name == "libvpx-vp9") {
      options.set("crf", kVp9Crf);
      options.set("b", "0");
      options.set("cpu-used", "4");
      options.set("row-mt", settings_.deterministic ? "0" : "1");
    }
    if (const int result = avcodec_open2(encoder_.get(), codec, options.address()); result < 0)
      throw Error(ErrorKind::kOutput, "cannot open the video encoder '" + name + "' for " +
                                          std::to_string(settings_.width) + "x" +
                                          std::to_string(settings_.height) + ": " +
                                          ffmpeg::reason(result));
    reordered_ = encoder_->has_b_frames;
  }

  void encode(const AVFrame* picture) {
    const std::string& path = pieces_.back().path;
    if (const int result = avcodec_send_frame(encoder_.get(), picture); result < 0)
      fail_write(path, result);
    for (;;) {
      const int result = avcodec_receive_packet(encoder_.get(), packet_.get());
      if (result == AVERROR(EAGAIN) || result == AVERROR_EOF) return;
      if (result < 0) fail_write(path, result);
      AVStream* stream = muxer_->streams[0];
      packet_->duration = 1;
      packet_->stream_index = 0;
      // An encoder that had few frames says other decoding times than the one behind it expects.
      packet_->dts = std::min(packet_->pts, encoded_++ - reordered_);
      av_packet_rescale_ts(packet_.get(), frame_time(), stream->time_base);
      const int written = av_interleaved_write_frame(muxer_.get(), packet_.get());
      if (written < 0) fail_write(path, written);
      if (muxer_->pb->error < 0) fail_write(path, muxer_->pb->error);
    }
  }

  AVRational frame_time() const { return {settings_.fps_den, settings_.fps_num}; }

  Owner<AVFormatContext> open_source(const Piece& piece) const {
    AVFormatContext* opened = nullptr;
    int result = avformat_open_input(
        &opened, ("file:" + piece.path).c_str(),
        av_find_input_format(container_ == Container::kMp4 ? "mp4" : "matroska"), nullptr);
    if (result < 0) fail_write(piece.path, result);
    Owner<AVFormatContext> source(opened);
    if (result = avformat_find_stream_info(source.get(), nullptr); result < 0)
      fail_write(piece.path, result);
    return source;
  }

  // Writes the pieces as one file, an .mp4 with its index in front. The coded pictures are copied.
  void join() {
    PartFile whole(part_.final_path(), part_.overwrite(), "whole.part");
    const std::string& path = whole.path();
    const bool mp4 = container_ == Container::kMp4;
    Owner<AVFormatContext> source = open_source(pieces_.front());
    Owner<AVFormatContext> target = open_muxer(path, mp4 ? "mp4" : "webm");
    AVStream* out = avformat_new_stream(target.get(), nullptr);
    avcodec_parameters_copy(out->codecpar, source->streams[0]->codecpar);
    out->codecpar->bit_rate = 0;  // the first piece's: the muxer counts that of all
    out->time_base = frame_time();
    out->avg_frame_rate = av_inv_q(frame_time());
    if (settings_.deterministic) target->flags |= AVFMT_FLAG_BITEXACT;
    set_metadata(target.get(), settings_);
    // Decoding times start below zero if pictures are reordered. An edit list says so, and the
    // first picture is shown at time 0.
    target->avoid_negative_ts = AVFMT_AVOID_NEG_TS_DISABLED;
    open_file(target.get(), path);
    const auto close = [&](int error) {
      avio_closep(&target->pb);
      fail_write(path, error);
    };
    Options options;
    if (mp4) options.set("movflags", "faststart+use_metadata_tags");
    int result = avformat_write_header(target.get(), options.address());
    if (result < 0) close(result);
    encoded_ = 0;
    for (const Piece& piece : pieces_) {
      if (piece.first > 0) source = open_source(piece);
      if (result = copy_pictures(piece, source.get(), target.get()); result < 0) close(result);
    }
    if (target->pb->error < 0) close(target->pb->error);
    if (result = av_write_trailer(target.get()); result < 0) close(result);
    close_file(target.get(), path);
    if (encoded_ != frames_)
      throw Error(ErrorKind::kOutput, "'" + part_.path() + "' holds " + std::to_string(encoded_) +
                                          " of " + std::to_string(frames_) +
                                          " frames: the disk lost some");
    if (pieces_.size() == 1)
      part_.take(whole);
    else
      whole.publish();  // the pieces can be joined again until it is done
  }

  // Gives the pictures the times that they have in the whole clip. Returns FFmpeg's error.
  int copy_pictures(const Piece& piece, AVFormatContext* source, AVFormatContext* target) {
    const AVStream* in = source->streams[0];
    const AVCodecParameters &has = *in->codecpar, &wants = *target->streams[0]->codecpar;
    if (!std::ranges::equal(std::span(has.extradata, has.extradata_size),
                            std::span(wants.extradata, wants.extradata_size)))
      throw Error(ErrorKind::kOutput, "'" + piece.path + "' was encoded otherwise than '" +
                                          part_.path() + "', so that they cannot be joined");
    int64_t first = AV_NOPTS_VALUE;
    while (av_read_frame(source, packet_.get()) >= 0) {
      // The first packet is a key frame and the first frame that is shown.
      if (first == AV_NOPTS_VALUE) first = packet_->pts;
      packet_->pts = piece.first + av_rescale_q(packet_->pts - first, in->time_base, frame_time());
      packet_->dts = std::min(packet_->pts, encoded_++ - reordered_);
      packet_->duration = 1;
      packet_->pos = -1;
      av_packet_rescale_ts(packet_.get(), frame_time(), target->streams[0]->time_base);
      if (const int result = av_interleaved_write_frame(target, packet_.get()); result < 0)
        return result;
    }
    return 0;
  }

  const VideoSettings settings_;
  const Container container_;
  PartFile part_;                  // the first piece, then all
  std::optional<PartFile> later_;  // the last of the others
  std::vector<Piece> pieces_;
  Owner<AVFormatContext> muxer_;   // of the last piece; null where it is closed
  Owner<AVCodecContext> encoder_;  // null behind a cut
  Owner<SwsContext> converter_;
  Owner<AVFrame> picture_;
  Owner<AVPacket> packet_;
  int64_t frames_;
  int64_t encoded_ = 0;    // packets of the piece, later of all
  int64_t reordered_ = 0;  // frames by which decoding precedes showing
};

void check_settings(const VideoSettings& settings) {
  CHECK(settings.width > 0 && settings.height > 0, settings.width, settings.height);
  CHECK(settings.fps_num > 0 && settings.fps_den > 0, settings.fps_num, settings.fps_den);
  if (settings.width % 2) throw Error(ErrorKind::kUsage, even_advice("width", settings.width));
  if (settings.height % 2) throw Error(ErrorKind::kUsage, even_advice("height", settings.height));
}

}  // namespace

std::unique_ptr<FrameSink> make_mp4_sink(const std::string& path, const VideoSettings& settings,
                                         Overwrite overwrite) {
  check_settings(settings);
  return std::make_unique<EncodedSink>(path, settings, overwrite, Container::kMp4);
}

std::unique_ptr<FrameSink> make_webm_sink(const std::string& path, const VideoSettings& settings,
                                          Overwrite overwrite) {
  check_settings(settings);
  return std::make_unique<EncodedSink>(path, settings, overwrite, Container::kWebm);
}

std::unique_ptr<FrameSink> make_sink(const std::string& path, const VideoSettings& settings,
                                     Overwrite overwrite) {
  if (path.ends_with('/')) return make_png_folder_sink(path, settings, overwrite);
  const std::string extension = std::filesystem::path(path).extension().string();
  if (extension == ".mp4") return make_mp4_sink(path, settings, overwrite);
  if (extension == ".webm") return make_webm_sink(path, settings, overwrite);
  if (extension == ".gif") return make_gif_sink(path, settings, overwrite);
  if (extension == ".png") return make_png_sink(path, settings, overwrite);
  throw Error(ErrorKind::kUsage,
              "output '" + path +
                  "': the extension decides the format; use "
                  ".mp4, .webm, .gif, .png (one picture) or a path ending in '/' "
                  "(a folder of PNG frames)");
}

}  // namespace weft

namespace weft::ffmpeg {

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
