#pragma once
// What a media file says about itself, for `weft inspect` and `weft replay`.
#include <cstdint>
#include <map>
#include <string>

namespace weft {

struct MediaInfo {
  std::string container;     // "mp4", "webm", "matroska", "gif", "png"
  std::string codec;         // "h264", "vp9", "gif", "png"
  std::string pixel_format;  // "yuv420p", "rgb24", ...
  std::string colour;        // "bt709 limited", ...; empty where the file does not say
  int width = 0, height = 0;
  int64_t frames = 0;  // counted, not believed
  double fps = 0;      // 0 for a picture
  double seconds = 0;
  std::map<std::string, std::string> metadata;  // container tags; a PNG file's text chunks
};

// Reads headers and counts packets; decodes nothing. Limits as VideoReader and read_png.
// Errors: kMedia.
MediaInfo probe_media(const std::string& path);

}  // namespace weft
