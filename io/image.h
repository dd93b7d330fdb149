#pragma once
// PNG pictures: one file, or a folder of frames, with text chunks; and a reader for untrusted ones.
#include <map>
#include <memory>
#include <string>

#include "io/frame.h"
#include "io/part_file.h"
#include "io/video.h"

namespace weft {

// One picture; `texts` become tEXt chunks (iTXt where not ASCII, in UTF-8). The file appears whole
// or not at all. Errors: kOutput.
void write_png(const std::string& path, const Frame& frame,
               const std::map<std::string, std::string>& texts, Overwrite overwrite);

// The PNG file's bytes.
std::string encode_png(const Frame& frame, const std::map<std::string, std::string>& texts);

// A sink for exactly one frame: a second one is Error(kUsage).
std::unique_ptr<FrameSink> make_png_sink(const std::string& path, const VideoSettings& settings,
                                         Overwrite overwrite);
// `path` ends in '/': 00000.png, 00001.png, ...; every one carries the metadata. The folder appears
// whole.
std::unique_ptr<FrameSink> make_png_folder_sink(const std::string& path,
                                                const VideoSettings& settings, Overwrite overwrite);

struct PngInfo {
  int width = 0, height = 0;
  int bit_depth = 0;
  int channels = 0;
  std::map<std::string, std::string> texts;
};

// Any PNG as 8-bit RGB: 16 bits are rounded, gray and palettes expanded, transparency dropped.
// Refused before decoding: more than 64 MiB, 64 Mpixel or a side outside 1..16384. Errors: kMedia.
Frame read_png(const std::string& path, PngInfo* info = nullptr);

// Header and text chunks alone.
PngInfo probe_png(const std::string& path);

}  // namespace weft
