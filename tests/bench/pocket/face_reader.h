#pragma once
// Reads back from pictures of the pocket avatar (models/pocket_avatar) what they show: how far the
// mouth is open, gaze, lids, mood and colours; and measures whether the mouth follows a sound. It
// reads what models/pocket_avatar/recipe/read_face.py reads, by plain measurements at known places,
// and so only faces of 96x96 pixels that face.py draws or that the model makes of them.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/media/frame.h"

namespace weft::pocket {

constexpr int kFaceSize = 96;  // pixels, both ways

enum class Skin : uint8_t { kPale, kTan, kBrown, kDark };
enum class Hair : uint8_t { kBlack, kBlond, kRed, kGray };
enum class Backdrop : uint8_t { kBlue, kGreen, kNavy, kWhite };
enum class Mood : uint8_t { kCalm, kHappy, kStern };
constexpr int kSkins = 4, kHairs = 4, kBackdrops = 4, kMoods = 3;

struct FacePaint {
  std::string_view name;
  int rgb[3];
};
const FacePaint& paint_of(Skin skin);
const FacePaint& paint_of(Hair hair);
const FacePaint& paint_of(Backdrop backdrop);
std::string_view to_string(Mood mood);

struct FaceLook {
  Skin skin = Skin::kPale;
  Hair hair = Hair::kBlack;
  Backdrop backdrop = Backdrop::kBlue;
  Mood mood = Mood::kCalm;
  bool operator==(const FaceLook&) const = default;
};

// Returns a caption such as "a calm face with tan skin and red hair on a navy background".
std::string caption_of(const FaceLook& look);

// One picture.
struct FaceReading {
  Skin skin = Skin::kPale;
  Hair hair = Hair::kBlack;
  Backdrop backdrop = Backdrop::kBlue;
  double opening = 0;          // of the mouth, 0 to about 1
  double lids = 0;             // 0 open to 1 shut
  bool shut = false;           // the lids, as good as wholly
  std::optional<double> gaze;  // -1 left to 1 right; nullopt where no pupils are seen
  // Pixels that the corners of the mouth are higher than its middle, and that the inner ends of the
  // brows are lower than the outer ones: the mood of a face whose mouth is shut.
  double bend = 0, frown = 0;
};

// A picture of another size is a programming error.
FaceReading read_face(const Frame& picture);

// The mood of a stream, from those of its pictures whose mouth is least open.
Mood mood_of(std::span<const FaceReading> pictures);

// The look of a stream: of its middle picture, and its mood.
FaceLook look_of(std::span<const FaceReading> pictures);

// The loudness of each picture's sound, 0 to 1; samples at 16 kHz, 640 of them to a picture.
std::vector<double> loudness_of(std::span<const float> sound);

// The likeness of the opening of the mouth to the loudness.
struct LipSync {
  double correlation = 0;  // without a lag
  int lag = 0;             // pictures by which the mouth is late where they correlate best
  double best = 0;         // the correlation there
};

constexpr int kLargestLag = 5;  // pictures, either way

// `speaks` says of each picture whether its sound is the face's own; only such pictures count, and
// none of the first and the last kLargestLag. Correlations of what does not vary are 0.
LipSync lip_sync(std::span<const double> opening, std::span<const double> loudness,
                 const std::vector<bool>& speaks);

}  // namespace weft::pocket
