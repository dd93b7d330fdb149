#include "io/media/media_probe.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <fstream>

#include "io/media/image.h"
#include "io/media/input_media.h"
#include "kernels/check.h"

extern "C" {
#include <libavutil/pixdesc.h>
}

namespace weft {
namespace {

bool is_png(const std::string& path) {
  std::array<char, 8> head{};
  std::ifstream(path, std::ios::binary).read(head.data(), head.size());
  return std::memcmp(head.data(), "\x89PNG\r\n\x1a\n", head.size()) == 0;
}

// Adds the tags with keys in lower case, because Matroska stores them in capitals.
void add_tags(const AVDictionary* tags, std::map<std::string, std::string>& out) {
  const AVDictionaryEntry* entry = nullptr;
  while ((entry = av_dict_get(tags, "", entry, AV_DICT_IGNORE_SUFFIX))) {
    std::string key = entry->key;
    std::ranges::transform(key, key.begin(), [](unsigned char c) { return std::tolower(c); });
    out.emplace(key, entry->value);
  }
}

std::string colour_of(const AVCodecParameters& parameters) {
  if (parameters.color_space == AVCOL_SPC_UNSPECIFIED || parameters.color_space == AVCOL_SPC_RGB)
    return "";
  const char* space = av_color_space_name(parameters.color_space);
  std::string text = space ? space : "unknown";
  if (parameters.color_range == AVCOL_RANGE_MPEG) text += " limited";
  if (parameters.color_range == AVCOL_RANGE_JPEG) text += " full";
  return text;
}

MediaInfo probe_picture(const std::string& path) {
  const PngInfo png = probe_png(path);
  MediaInfo info;
  info.container = info.codec = "png";
  info.width = png.width;
  info.height = png.height;
  info.frames = 1;
  constexpr const char* kName[] = {"", "gray", "gray+alpha", "rgb", "rgba"};
  info.pixel_format = kName[png.channels] + std::to_string(png.bit_depth);
  info.metadata = png.texts;
  return info;
}

}  // namespace

MediaInfo probe_media(const std::string& path) {
  if (is_png(path)) return probe_picture(path);
  ffmpeg::InputMedia media(path);
  const AVStream* stream = media.stream();
  const AVCodecParameters& parameters = *stream->codecpar;
  MediaInfo info;
  info.container = media.format()->iformat->name;
  if (info.container.find("mp4") != std::string::npos) info.container = "mp4";
  if (info.container.find("matroska") != std::string::npos) {
    info.container = file_ending(path) == ".webm" ? "webm" : "matroska";
  }
  info.codec = avcodec_get_name(parameters.codec_id);
  if (const char* name = av_get_pix_fmt_name(static_cast<AVPixelFormat>(parameters.format)))
    info.pixel_format = name;
  info.colour = colour_of(parameters);
  info.width = parameters.width;
  info.height = parameters.height;
  info.fps = av_q2d(av_guess_frame_rate(media.format(), media.stream(), nullptr));
  add_tags(media.format()->metadata, info.metadata);
  add_tags(stream->metadata, info.metadata);
  ffmpeg::Owner<AVPacket> packet(av_packet_alloc());
  for (; media.read(packet.get()); av_packet_unref(packet.get())) ++info.frames;
  info.seconds = media.format()->duration > 0
                     ? static_cast<double>(media.format()->duration) / AV_TIME_BASE
                 : info.fps > 0 ? static_cast<double>(info.frames) / info.fps
                                : 0;
  return info;
}

}  // namespace weft
