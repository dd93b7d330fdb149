#pragma once
// InputMedia: opens an untrusted media file and reads the packets of one of its streams, within
// limits. MediaDecoder: the pictures or sounds of these packets.
#include <chrono>
#include <optional>
#include <string>

#include "io/media/ffmpeg.h"

namespace weft::ffmpeg {

using Deadline = std::chrono::steady_clock::time_point;

// No other demuxer or decoder is opened, only the protocol "file", and at most 8 streams.
struct InputLimits {
  AVMediaType type;      // of the stream that is read
  const char* formats;   // demuxers, separated by commas
  const char* codecs;    // decoders, separated by commas
  const char* expected;  // "an MP4, WebM, Matroska or GIF file", for the refusal
  int64_t max_packets;   // in the stream
  int64_t max_seconds;   // of media
  std::chrono::seconds max_work;
};
extern const InputLimits kClipLimits;  // those of VideoReader

// Errors: kMedia with the path.
[[noreturn]] void refuse_media(const std::string& path, const std::string& why);

class InputMedia {
 public:
  explicit InputMedia(const std::string& path, const InputLimits& limits = kClipLimits);
  InputMedia(const InputMedia&) = delete;  // FFmpeg keeps the address of deadline_
  InputMedia& operator=(const InputMedia&) = delete;

  const std::string& path() const { return path_; }
  const InputLimits& limits() const { return limits_; }
  AVFormatContext* format() const { return format_.get(); }
  AVStream* stream() const { return format_->streams[stream_]; }
  // Reads the next packet of the stream. Returns false at the end.
  bool read(AVPacket* packet);
  // Between pause() and resume() no time counts against max_work.
  void pause() { paused_ = std::chrono::steady_clock::now(); }
  void resume();

 private:
  std::string path_;
  const InputLimits& limits_;
  Deadline deadline_;
  Owner<AVFormatContext> format_;
  int stream_ = -1;
  int64_t packets_ = 0;
  std::optional<Deadline> paused_;
};

class MediaDecoder {
 public:
  // `media` must live as long as the decoder.
  explicit MediaDecoder(InputMedia& media);

  // Decodes the next picture or stretch of sound. Returns false at the end.
  bool next(AVFrame* frame);

 private:
  InputMedia& media_;
  Owner<AVCodecContext> decoder_;
  Owner<AVPacket> packet_{av_packet_alloc()};
};

}  // namespace weft::ffmpeg
