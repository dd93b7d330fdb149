#include "tests/bench/pocket/words.h"

#include <random>

namespace weft::pocket {
namespace {

struct Named {
  std::string_view name;
  Rgb rgb;
};
constexpr Named kColourTable[] = {{"red", {220, 40, 40}},     {"green", {40, 180, 70}},
                                  {"blue", {50, 90, 225}},    {"yellow", {235, 205, 50}},
                                  {"purple", {150, 60, 190}}, {"orange", {240, 130, 30}},
                                  {"white", {240, 240, 240}}, {"cyan", {60, 205, 215}}};
constexpr Named kGroundTable[] = {{"black", {12, 12, 16}},
                                  {"gray", {110, 110, 115}},
                                  {"navy", {18, 26, 74}},
                                  {"brown", {92, 58, 32}}};
constexpr std::string_view kShapeNames[] = {"ball", "square", "triangle", "star", "ring"};
constexpr std::string_view kMotionNames[] = {"moving left", "moving right",   "moving up",
                                             "moving down", "standing still", "circling",
                                             "growing",     "shrinking"};
constexpr std::string_view kSizeNames[] = {"small", "big"};

}  // namespace

std::string_view to_string(Colour colour) { return kColourTable[static_cast<int>(colour)].name; }
std::string_view to_string(Ground ground) { return kGroundTable[static_cast<int>(ground)].name; }
std::string_view to_string(Shape shape) { return kShapeNames[static_cast<int>(shape)]; }
std::string_view to_string(Motion motion) { return kMotionNames[static_cast<int>(motion)]; }
std::string_view to_string(Size size) { return kSizeNames[static_cast<int>(size)]; }
Rgb rgb_of(Colour colour) { return kColourTable[static_cast<int>(colour)].rgb; }
Rgb rgb_of(Ground ground) { return kGroundTable[static_cast<int>(ground)].rgb; }

std::string prompt_of(const ClipSpec& spec) {
  std::string text = "a ";
  text += to_string(spec.size);
  text += ' ';
  text += to_string(spec.colour);
  text += ' ';
  text += to_string(spec.shape);
  text += ", ";
  text += to_string(spec.motion);
  text += " on a ";
  text += to_string(spec.ground);
  return text + " background";
}

std::vector<ClipSpec> all_combinations() {
  std::vector<ClipSpec> out;
  for (int c = 0; c < kColours; ++c)
    for (int s = 0; s < kShapes; ++s)
      for (int m = 0; m < kMotions; ++m)
        for (int g = 0; g < kGrounds; ++g)
          out.push_back({Colour(c), Shape(s), Motion(m), Ground(g), Size::kBig});
  return out;
}

bool held_out(const ClipSpec& spec) {
  uint32_t hash = 0x811c9dc5u;
  const auto add = [&](std::string_view text) {
    for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x01000193u;
  };
  add(to_string(spec.colour));
  add(" ");
  add(to_string(spec.shape));
  add(" ");
  add(to_string(spec.motion));
  add(" ");
  add(to_string(spec.ground));
  return hash % 10 == 0;
}

std::vector<ClipSpec> clips_in_turn(int count, uint64_t seed) {
  std::vector<ClipSpec> trained, held, clips;
  for (const ClipSpec& spec : all_combinations()) (held_out(spec) ? held : trained).push_back(spec);
  std::mt19937_64 random(seed);
  for (int i = 0; i < count; ++i) {
    const std::vector<ClipSpec>& from = i % 2 ? held : trained;
    clips.push_back(from[random() % from.size()]);
    clips.back().size = Size(random() % 2);
  }
  return clips;
}

}  // namespace weft::pocket
