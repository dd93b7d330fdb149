// Writes clips as H.264 in MP4 and VP9 in WebM, with libavcodec and libavformat.
#include "io/media/video.h"

#include <malloc.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <span>

#include "io/media/image.h"
#include "io/media/media_probe.h"
#include "io/media/output_media.h"
#include "kernels/check.h"

namespace weft {

using ffmpeg::close_file;
using ffmpeg::fail_write;
using ffmpeg::open_file;
using ffmpeg::open_muxer;
using ffmpeg::Options;
using ffmpeg::Owner;
using ffmpeg::set_metadata;

namespace {

enum class Container { kMp4, kWebm };

// Every keep() ends a file; the frames after it go to the next one. All become one file at last.
class EncodedSink : public FrameSink {
 public:
  EncodedSink(const std::string& path, const VideoSettings& settings, Overwrite overwrite,
              Container container)
      : settings_(settings),
        container_(container),
        part_(path, overwrite, "part", settings.kept_frames ? Earlier::kKept : Earlier::kDropped),
        picture_(settings.width, settings.height),
        frames_(settings.kept_frames) {
    ffmpeg::silence_log();
    find_kept();
    packet_.reset(av_packet_alloc());
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
    encode(picture_.fill(frame, frames_++ - pieces_.back().first));
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

  // Finds the pieces of an earlier run, and removes those after the frames that it kept.
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
    set_metadata(muxer_.get(), settings_.metadata);
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
    encoder_ = ffmpeg::open_video_encoder(settings_, mp4 ? "libx264" : "libvpx-vp9",
                                          muxer_->oformat->flags & AVFMT_GLOBALHEADER);
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
      // An encoder that had few frames says other decoding times than the one after it expects.
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
    set_metadata(target.get(), settings_.metadata);
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
  Owner<AVCodecContext> encoder_;  // null after a cut
  ffmpeg::PictureBuffer picture_;
  Owner<AVPacket> packet_;
  int64_t frames_;
  int64_t encoded_ = 0;    // packets of the piece, later of all
  int64_t reordered_ = 0;  // frames by which decoding precedes showing
};

}  // namespace

std::unique_ptr<FrameSink> make_mp4_sink(const std::string& path, const VideoSettings& settings,
                                         Overwrite overwrite) {
  ffmpeg::check_video_settings(settings);
  return std::make_unique<EncodedSink>(path, settings, overwrite, Container::kMp4);
}

std::unique_ptr<FrameSink> make_webm_sink(const std::string& path, const VideoSettings& settings,
                                          Overwrite overwrite) {
  ffmpeg::check_video_settings(settings);
  return std::make_unique<EncodedSink>(path, settings, overwrite, Container::kWebm);
}

bool media_built() { return true; }

std::unique_ptr<FrameSink> make_sink(const std::string& path, const VideoSettings& settings,
                                     Overwrite overwrite) {
  if (path.ends_with('/')) return make_png_folder_sink(path, settings, overwrite);
  const std::string extension = file_ending(path);
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
