#pragma once
// Writes and reads clips: sinks turn frames into a file, and a reader turns a file into frames.
// Outputs appear under their final name complete or not at all.
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/media/frame.h"
#include "io/part_file.h"

namespace weft {

struct VideoSettings {
  int width = 0, height = 0;
  int fps_num = 16, fps_den = 1;
  int threads = 0;             // threads of the encoder; 0: its own choice
  bool deterministic = false;  // equal frames give equal bytes: the encoder runs on one thread
  // Metadata is written to the file if the format supports it. The keys in use are "parameters"
  // (text, one line per topic, see metadata.h) and "weft" (JSON). MP4 and WebM repeat "weft" as
  // "comment".
  std::map<std::string, std::string> metadata;
  std::string encoder;  // a libavcodec encoder's name; empty: libx264 (.mp4), libvpx-vp9 (.webm)
  // So many frames were kept by an earlier sink of the same output (FrameSink::keep()); the next
  // push is the frame after them. Error(kOutput) where they are not there.
  int64_t kept_frames = 0;
  // The encoder begins anew at frame first_cut and every `cut` frames from there, so that a file
  // that is kept at a cut has the bytes of one that never was. 0: it never does.
  int64_t first_cut = 0, cut = 0;

  bool cuts_at(int64_t frame) const { return cut > 0 && (frame - first_cut) % cut == 0; }
};

// Takes the frames of one clip in order. Only one thread at a time may use it. If it is destroyed
// before finish(), it removes what it wrote after the last keep(). Errors: kOutput with one line.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  virtual void push(const Frame& frame) = 0;  // the frame must have the size of the settings
  // Makes all frames so far stay on disk, in hidden files, for a later sink of the same output. A
  // sink that stores no frames does nothing.
  virtual void keep() {}
  virtual std::string finish() = 0;  // returns the final path, which exists from now on
};

// False in a build without -DWEFT_MEDIA=ON: every other function of this header throws there.
bool media_built();

// Makes a sink. The extension decides: .mp4, .webm and .gif give a clip, .png one picture, and a
// path that ends in '/' a folder of PNG frames 00000.png, 00001.png, ... Anything else is an
// Error(kUsage). The part file is opened here, so that a path that cannot be written, an existing
// file (Overwrite::kRefuse) or a missing encoder is reported before any frame is computed.
std::unique_ptr<FrameSink> make_sink(const std::string& path, const VideoSettings& settings,
                                     Overwrite overwrite);

// Writes MP4 (H.264 High, 4:2:0, BT.709, index in front). Odd sizes are an Error(kUsage). While it
// runs, it appends to a fragmented `.<name>.part.mp4` in the target folder, which is playable up to
// its last second; frames after a keep() go to `.<name>.part-N.mp4`, N being the first of them.
std::unique_ptr<FrameSink> make_mp4_sink(const std::string& path, const VideoSettings& settings,
                                         Overwrite overwrite);
// Writes WebM (VP9, 4:2:0, BT.709). Odd sizes are an Error(kUsage).
std::unique_ptr<FrameSink> make_webm_sink(const std::string& path, const VideoSettings& settings,
                                          Overwrite overwrite);
// Writes a GIF that loops and has one palette for the whole clip. Until the palette is known,
// frames are stored in `.<name>.spool.gif` (3 bytes per pixel).
std::unique_ptr<FrameSink> make_gif_sink(const std::string& path, const VideoSettings& settings,
                                         Overwrite overwrite);

// Reads untrusted MP4, WebM/Matroska and GIF files. It allows no other demuxer, only the protocol
// "file", and at most 8 streams, 64 Mpixel, 20,000 frames, 10 minutes and 30 s of work. Errors:
// kMedia.
class VideoReader {
 public:
  explicit VideoReader(const std::string& path);
  ~VideoReader();
  VideoReader(const VideoReader&) = delete;
  VideoReader& operator=(const VideoReader&) = delete;

  int width() const;
  int height() const;
  double fps() const;
  // Reads the next frame. Returns false after the last one.
  bool next(Frame& frame);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Reads all frames of a clip, for tests and small clips.
std::vector<Frame> read_video(const std::string& path);

}  // namespace weft
