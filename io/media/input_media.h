#pragma once
// InputMedia: opens an untrusted media file and reads its packets, within the limits of
// VideoReader.
#include <chrono>
#include <string>

#include "io/media/ffmpeg.h"

namespace weft::ffmpeg {

using Deadline = std::chrono::steady_clock::time_point;

class InputMedia {
 public:
  explicit InputMedia(const std::string& path);
  InputMedia(const InputMedia&) = delete;  // FFmpeg keeps the address of deadline_
  InputMedia& operator=(const InputMedia&) = delete;

  const std::string& path() const { return path_; }
  AVFormatContext* format() const { return format_.get(); }
  AVStream* stream() const { return format_->streams[stream_]; }
  // Reads the next packet of the video stream. Returns false at the end.
  bool read(AVPacket* packet);
  void extend_deadline(Deadline::duration pause);

 private:
  std::string path_;
  Deadline deadline_;
  Owner<AVFormatContext> format_;
  int stream_ = -1;
  int64_t packets_ = 0;
};

}  // namespace weft::ffmpeg
