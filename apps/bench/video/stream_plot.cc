#include "apps/bench/video/stream_plot.h"

#include <algorithm>
#include <vector>

#include "apps/bench/pocket/face_reader.h"
#include "apps/bench/video/svg_text.h"
#include "io/media/image.h"

namespace weft {
namespace {

constexpr int kFaces = 18;
constexpr double kLeft = 20, kFace = 64, kWidth = kFaces * kFace, kTop = 40, kBand = 22,
                 kSound = 70, kMouth = 50;

std::string base64(const std::string& bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    uint32_t word = 0;
    for (size_t k = 0; k < 3; ++k)
      word = word << 8 | (k < count ? static_cast<uint8_t>(bytes[i + k]) : 0u);
    for (size_t k = 0; k < 4; ++k) text += k <= count ? kDigits[word >> (18 - 6 * k) & 63] : '=';
  }
  return text;
}

const char* colour_of(SessionState state) {
  switch (state) {
    case SessionState::kSpeaking:
      return "#c6f6d5";
    case SessionState::kListening:
      return "#bee3f8";
    default:
      return "#edf2f7";
  }
}

// A coloured band for each stretch of slots of one state.
std::string state_bands(std::span<const SessionSlot> slots, double y) {
  const double each = kWidth / static_cast<double>(slots.size());
  std::string out;
  for (size_t first = 0, end = 0; first < slots.size(); first = end) {
    while (end < slots.size() && slots[end].state == slots[first].state) ++end;
    const double x = kLeft + each * static_cast<double>(first);
    out += shaped("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n", x,
                  y, each * static_cast<double>(end - first), kBand, colour_of(slots[first].state));
    out += label(x + 4, y + 15, name_of(slots[first].state));
  }
  return out;
}

// The loudness as an area around a line in the middle.
std::string envelope(std::span<const double> loudness, double y) {
  const double most = std::max(1e-9, *std::ranges::max_element(loudness));
  const double each = kWidth / static_cast<double>(loudness.size());
  std::string above, below;
  for (size_t i = 0; i < loudness.size(); ++i) {
    const double x = kLeft + each * (static_cast<double>(i) + 0.5);
    const double height = kSound / 2 * loudness[i] / most;
    above += shaped("%c%.1f %.1f", i ? 'L' : 'M', x, y + kSound / 2 - height);
    below = shaped("L%.1f %.1f", x, y + kSound / 2 + height) + below;
  }
  return "<path d=\"" + above + below + "Z\" fill=\"#2b6cb0\" stroke=\"#2b6cb0\"/>\n";
}

// A line from the bottom, where the mouth is shut, to the top.
std::string mouth(std::span<const double> opening, double y) {
  const double each = kWidth / static_cast<double>(opening.size());
  std::string path;
  for (size_t i = 0; i < opening.size(); ++i)
    path += shaped("%c%.1f %.1f", i ? 'L' : 'M', kLeft + each * (static_cast<double>(i) + 0.5),
                   y + kMouth * (1 - std::clamp(opening[i], 0.0, 1.0)));
  return "<path d=\"" + path + "\" fill=\"none\" stroke=\"#c53030\"/>\n";
}

}  // namespace

std::string stream_svg(std::span<const SessionSlot> slots, double fps, const std::string& title) {
  std::vector<double> loudness, opening;
  for (const SessionSlot& slot : slots) {
    loudness.push_back(pocket::loudness_of(slot.sound).front());
    if (slot.picture.width == pocket::kFaceSize && slot.picture.height == pocket::kFaceSize)
      opening.push_back(pocket::read_face(slot.picture).opening);
  }
  const double bands = kTop + kFace + 6, sound = bands + kBand + 24, lips = sound + kSound + 24;
  const double height = opening.empty() ? lips : lips + kMouth + 12;
  std::string out = shaped(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
      "font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"100%%\" height=\"100%%\" "
      "fill=\"white\"/>\n",
      kWidth + 2 * kLeft, height);
  out += label(kLeft, 24, title);
  for (int i = 0; i < kFaces; ++i) {
    const size_t slot = static_cast<size_t>((2 * i + 1) * std::ssize(slots) / (2 * kFaces));
    out += shaped("<image x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" ", kLeft + i * kFace,
                  kTop, kFace, kFace) +
           "href=\"data:image/png;base64," + base64(encode_png(slots[slot].picture, {})) + "\"/>\n";
  }
  out += state_bands(slots, bands) + envelope(loudness, sound);
  out += label(kLeft, sound - 4,
               shaped("loudness, over %.1f s", static_cast<double>(slots.size()) / fps));
  if (!opening.empty())
    out += label(kLeft, lips - 4, "opening of the mouth") + mouth(opening, lips);
  return out + "</svg>\n";
}

}  // namespace weft
