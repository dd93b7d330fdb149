#pragma once
// Reads the properties and metadata of a media file, for `weft inspect` and `weft replay`.
#include <cstdint>
#include <map>
#include <string>

namespace weft {

struct MediaInfo {
  std::string container;     // "mp4", "webm", "matroska", "gif", "png"
  std::string codec;         // "h264", "vp9", "gif", "png"
  std::string pixel_format;  // "yuv420p", "rgb24", ...
  std::string colour;        // "bt709 limited", ...; empty if the file does not say
  int width = 0, height = 0;
  int64_t frames = 0;  // counted, not read from the header
  double fps = 0;      // 0 for a picture
  double seconds = 0;
  std::map<std::string, std::string> metadata;  // container tags; a PNG file's text chunks
};

// Reads headers and counts packets, but decodes nothing. The limits are those of VideoReader and
// read_png. Errors: kMedia.
MediaInfo probe_media(const std::string& path);

}  // namespace weft
