#pragma once
// Writes PNG pictures with text chunks, as one file or as a folder of frames, and reads untrusted
// ones.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/media/frame.h"
#include "io/media/video.h"
#include "io/part_file.h"

namespace weft {

// Writes one picture. `texts` become tEXt chunks, or iTXt chunks in UTF-8 if they are not ASCII.
// The file appears complete or not at all. Errors: kOutput.
void write_png(const std::string& path, const Frame& frame,
               const std::map<std::string, std::string>& texts, Overwrite overwrite);

// Returns the bytes of a PNG file.
std::string encode_png(const Frame& frame, const std::map<std::string, std::string>& texts);

// Makes a sink for exactly one frame. A second frame is an Error(kUsage).
std::unique_ptr<FrameSink> make_png_sink(const std::string& path, const VideoSettings& settings,
                                         Overwrite overwrite);
// Makes a sink that writes the folder `path`, which ends in '/': 00000.png, 00001.png, ... Every
// file carries the metadata. The folder appears complete or not at all.
std::unique_ptr<FrameSink> make_png_folder_sink(const std::string& path,
                                                const VideoSettings& settings, Overwrite overwrite);

struct PngInfo {
  int width = 0, height = 0;
  int bit_depth = 0;
  int channels = 0;
  std::map<std::string, std::string> texts;
};

// Reads any PNG as 8-bit RGB: 16 bits are rounded, gray and palettes expanded, transparency
// dropped. Files of more than 64 MiB, 64 Mpixel or a side outside 1..16384 are refused before
// decoding. Errors: kMedia.
Frame read_png(const std::string& path, PngInfo* info = nullptr);

// 8 bits per channel, rows from the top: RGB, or with 4 channels RGB and alpha, where the colours
// have not been multiplied by alpha.
struct StoredPicture {
  int width = 0, height = 0, channels = 0;
  std::vector<uint8_t> pixels;
};

// Decodes a PNG file as Pillow does: 16 bits keep their high byte, gray and palettes are expanded;
// transparency is the fourth channel of the pictures that have any. The limits are those of
// read_png. Messages begin with `name`. Errors: kMedia.
StoredPicture decode_png(const std::string& name, std::string bytes);

// Reads only the header and the text chunks.
PngInfo probe_png(const std::string& path);

}  // namespace weft
