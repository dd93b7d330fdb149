#pragma once
// Clips in and out: sinks that turn frames into a file, and a reader that turns a file into frames.
// Outputs appear under their final name whole or not at all.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/frame.h"
#include "io/part_file.h"

namespace weft {

struct VideoSettings {
  int width = 0, height = 0;
  int fps_num = 16, fps_den = 1;
  int threads = 0;             // of the encoder; 0: its own choice
  bool deterministic = false;  // equal frames give equal bytes: the encoder runs on one thread
  // Written into the file where the format has a place. Keys in use: "parameters"
  // (one-line-per-topic text, see metadata.h) and "weft" (JSON); MP4 and WebM repeat "weft" as
  // "comment".
  std::map<std::string, std::string> metadata;
  std::string encoder;  // a libavcodec encoder's name; empty: libx264 (.mp4), libvpx-vp9 (.webm)
};

// Takes the frames of one clip in order. Used from one thread at a time. Destroyed before finish()
// it removes everything it wrote. Errors: kOutput with one line.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  virtual void push(const Frame& frame) = 0;  // of the settings' size
  virtual std::string finish() = 0;           // the final path, which exists from now on
};

// The extension decides: .mp4, .webm and .gif a clip, .png one picture, a path that ends in '/' a
// folder of PNG frames 00000.png, 00001.png, ... Anything else is Error(kUsage). The part file is
// opened here, so that a place that cannot be written, an existing file (Overwrite::kRefuse) or a
// missing encoder is reported before any frame is made.
std::unique_ptr<FrameSink> make_sink(const std::string& path, const VideoSettings& settings,
                                     Overwrite overwrite);

// MP4 (H.264 High, 4:2:0, BT.709, index in front). Even sizes only: Error(kUsage). While it runs a
// fragmented `.<name>.part.mp4` grows in the target folder, playable up to its last second.
std::unique_ptr<FrameSink> make_mp4_sink(const std::string& path, const VideoSettings& settings,
                                         Overwrite overwrite);
// WebM (VP9, 4:2:0, BT.709). Even sizes only.
std::unique_ptr<FrameSink> make_webm_sink(const std::string& path, const VideoSettings& settings,
                                          Overwrite overwrite);
// GIF that loops, one palette for the clip. Frames wait in a spool file (3 bytes per pixel) for it.
std::unique_ptr<FrameSink> make_gif_sink(const std::string& path, const VideoSettings& settings,
                                         Overwrite overwrite);

// Reads untrusted MP4, WebM/Matroska and GIF files: no other demuxer, no other protocol than file,
// at most 8 streams, 64 Mpixel, 20,000 frames, 10 minutes, 30 s of work. Errors: kMedia.
class VideoReader {
 public:
  explicit VideoReader(const std::string& path);
  ~VideoReader();
  VideoReader(const VideoReader&) = delete;
  VideoReader& operator=(const VideoReader&) = delete;

  int width() const;
  int height() const;
  double fps() const;
  // False after the last frame.
  bool next(Frame& frame);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Every frame of a clip. For tests and small clips.
std::vector<Frame> read_video(const std::string& path);

}  // namespace weft
