#include "tests/bench/pocket/face_reader.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "io/sound/audio_features.h"
#include "kernels/check.h"

namespace weft::pocket {
namespace {

constexpr FacePaint kSkinPaints[] = {{"pale", {250, 222, 196}},
                                     {"tan", {226, 172, 122}},
                                     {"brown", {160, 104, 66}},
                                     {"dark", {98, 62, 44}}};
constexpr FacePaint kHairPaints[] = {{"black", {28, 26, 30}},
                                     {"blond", {236, 202, 96}},
                                     {"red", {188, 74, 34}},
                                     {"gray", {150, 150, 156}}};
constexpr FacePaint kBackdropPaints[] = {{"blue", {70, 110, 190}},
                                         {"green", {74, 146, 96}},
                                         {"navy", {24, 34, 84}},
                                         {"white", {238, 238, 240}}};
constexpr std::string_view kMoodNames[] = {"calm", "happy", "stern"};
constexpr int kWhite = 248;  // of the eyes, all channels

// A part of a picture: rows and columns, the ends left out.
struct Box {
  int top, bottom, left, right;
  int width() const { return right - left; }
  int height() const { return bottom - top; }
};
constexpr Box kBackdropBox{4, 40, 2, 10}, kHairBox{8, 18, 40, 56}, kSkinBox{56, 64, 28, 36};
constexpr Box kInside{62, 86, 45, 51};  // the mouth's middle columns
constexpr Box kLips{65, 80, 34, 62};
constexpr Box kEyes[] = {{38, 58, 28, 45}, {38, 58, 51, 68}};  // of both heads' heights
constexpr Box kBrows[] = {{34, 45, 29, 44}, {34, 45, 52, 67}};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t half = values.size() / 2;
  return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// The paint that is nearest to the median colour of a box.
template <class Name, size_t N>
Name nearest(const Frame& picture, const Box& box, const FacePaint (&paints)[N]) {
  std::array<double, 3> middle;
  for (int c = 0; c < 3; ++c) {
    std::vector<double> levels;
    for (int y = box.top; y < box.bottom; ++y)
      for (int x = box.left; x < box.right; ++x) levels.push_back(picture.at(x, y)[c]);
    middle[c] = median(std::move(levels));
  }
  const auto distance = [&](const FacePaint& paint) {
    double sum = 0;
    for (int c = 0; c < 3; ++c) sum += std::abs(middle[c] - paint.rgb[c]);
    return sum;
  };
  return Name(std::ranges::min_element(paints, {}, distance) - paints);
}

// The values of a box, from the top and the left, of a function of a pixel.
struct Part {
  Box box;
  std::vector<double> values;
  double at(int x, int y) const { return values[size_t(y) * box.width() + x]; }

  // The mean row of columns, each row weighed with its values.
  double row_of(int left, int right) const {
    double sum = 1e-6, rows = 0;
    for (int y = 0; y < box.height(); ++y)
      for (int x = left; x < right; ++x) {
        sum += at(x, y);
        rows += y * at(x, y);
      }
    return rows / sum;
  }
};

template <class F>
Part measure_face(const Frame& picture, const Box& box, F&& value) {
  Part part{box, {}};
  for (int y = box.top; y < box.bottom; ++y)
    for (int x = box.left; x < box.right; ++x) part.values.push_back(value(picture.at(x, y)));
  return part;
}

// 0 to about 1, from the height of the mouth's dark inside.
double opening_of(const Frame& picture) {
  const Part dark = measure_face(picture, kInside, [](const uint8_t* p) {
    return std::clamp((200 - (double(p[0]) + p[1] + p[2])) / 84, 0.0, 1.0);
  });
  const double sum = std::accumulate(dark.values.begin(), dark.values.end(), 0.0);
  return sum / kInside.width() / 15;
}

// Returns 1 where the white of an eye covers more than half of a pixel that else is skin, else 0.
Part white_of(const Frame& picture, const Box& eye, const FacePaint& skin) {
  double length = 0;
  for (const int level : skin.rgb) length += (kWhite - level) * (kWhite - level);
  return measure_face(picture, eye, [&](const uint8_t* p) {
    double along = 0;
    for (int c = 0; c < 3; ++c) along += (p[c] - skin.rgb[c]) * (kWhite - skin.rgb[c]);
    return along / length > 0.5 ? 1.0 : 0.0;
  });
}

Part dark_of(const Frame& picture, const Box& eye) {
  Part dark = measure_face(picture, eye, [](const uint8_t* p) {
    return std::max({p[0], p[1], p[2]}) < 90 ? 1.0 : 0.0;
  });
  std::fill_n(dark.values.begin(), 7 * eye.width(), 0.0);  // a brow
  return dark;
}

double count_of(const Part& part) {
  return std::accumulate(part.values.begin(), part.values.end(), 0.0);
}

double mean_column(const Part& part) {
  double sum = 0;
  for (int y = 0; y < part.box.height(); ++y)
    for (int x = 0; x < part.box.width(); ++x) sum += x * part.at(x, y);
  return sum / count_of(part);
}

void read_eyes(const Frame& picture, const FacePaint& skin, FaceReading& reading) {
  double area = 0, sum = 0;
  int seen = 0;
  for (const Box& eye : kEyes) {
    const Part white = white_of(picture, eye, skin), dark = dark_of(picture, eye);
    area += count_of(white);
    if (count_of(white) <= 4 || count_of(dark) <= 2) continue;
    sum += mean_column(dark) - mean_column(white);
    ++seen;
  }
  // A VAE smears a blink over the pictures beside it, and so makes less of it.
  reading.lids = std::clamp(1 - area / 130, 0.0, 1.0);
  reading.shut = area < 18;
  if (seen > 0 && !reading.shut) reading.gaze = std::clamp(sum / seen / 5, -1.0, 1.0);
}

// The unlikeness of each pixel to the skin, 0 to 1. A VAE may lose the red of lips, but not that
// they are there.
Part unlike(const Frame& picture, const Box& box, const FacePaint& skin) {
  return measure_face(picture, box, [&](const uint8_t* p) {
    double far = 0;
    for (int c = 0; c < 3; ++c) far += std::abs(p[c] - skin.rgb[c]);
    return std::clamp((far - 36) / 54, 0.0, 1.0);
  });
}

double correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const double n = double(a.size());
  if (n < 3) return 0;
  const double mean_a = std::accumulate(a.begin(), a.end(), 0.0) / n;
  const double mean_b = std::accumulate(b.begin(), b.end(), 0.0) / n;
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += (a[i] - mean_a) * (b[i] - mean_b);
    aa += (a[i] - mean_a) * (a[i] - mean_a);
    bb += (b[i] - mean_b) * (b[i] - mean_b);
  }
  constexpr double kStill = 1e-12;  // roundings
  return aa > kStill && bb > kStill ? ab / std::sqrt(aa * bb) : 0;
}

}  // namespace

const FacePaint& paint_of(Skin skin) { return kSkinPaints[int(skin)]; }
const FacePaint& paint_of(Hair hair) { return kHairPaints[int(hair)]; }
const FacePaint& paint_of(Backdrop backdrop) { return kBackdropPaints[int(backdrop)]; }
std::string_view to_string(Mood mood) { return kMoodNames[int(mood)]; }

std::string caption_of(const FaceLook& look) {
  std::string text = "a ";
  text += to_string(look.mood);
  text += " face with ";
  text += paint_of(look.skin).name;
  text += " skin and ";
  text += paint_of(look.hair).name;
  text += " hair on a ";
  text += paint_of(look.backdrop).name;
  return text + " background";
}

FaceReading read_face(const Frame& picture) {
  CHECK(picture.width == kFaceSize && picture.height == kFaceSize, picture.width, picture.height);
  FaceReading reading;
  reading.skin = nearest<Skin>(picture, kSkinBox, kSkinPaints);
  reading.hair = nearest<Hair>(picture, kHairBox, kHairPaints);
  reading.backdrop = nearest<Backdrop>(picture, kBackdropBox, kBackdropPaints);
  reading.opening = opening_of(picture);
  const FacePaint& skin = paint_of(reading.skin);
  read_eyes(picture, skin, reading);
  const Part lips = unlike(picture, kLips, skin);
  reading.bend = lips.row_of(11, 17) - (lips.row_of(5, 8) + lips.row_of(20, 23)) / 2;
  const Part left = unlike(picture, kBrows[0], skin), right = unlike(picture, kBrows[1], skin);
  reading.frown =
      (left.row_of(10, 14) + right.row_of(1, 5) - left.row_of(2, 6) - right.row_of(9, 13)) / 2;
  return reading;
}

Mood mood_of(std::span<const FaceReading> pictures) {
  CHECK(!pictures.empty());
  std::vector<FaceReading> order(pictures.begin(), pictures.end());
  std::ranges::stable_sort(order, {}, &FaceReading::opening);
  order.resize(std::max<size_t>(1, order.size() / 5));
  std::vector<double> bends, frowns;
  for (const FaceReading& reading : order) {
    bends.push_back(reading.bend);
    frowns.push_back(reading.frown);
  }
  const double bend = median(std::move(bends)), frown = median(std::move(frowns));
  if (bend > 0.4) return Mood::kHappy;
  return bend < -0.6 || frown > 0.4 ? Mood::kStern : Mood::kCalm;
}

FaceLook look_of(std::span<const FaceReading> pictures) {
  CHECK(!pictures.empty());
  const FaceReading& middle = pictures[pictures.size() / 2];
  return {middle.skin, middle.hair, middle.backdrop, mood_of(pictures)};
}

// The root of the mean power over all bands, bent as a mouth opens.
std::vector<double> loudness_of(std::span<const float> sound) {
  SoundBands bands;
  std::vector<float> rows;
  bands.push(sound, rows);
  bands.finish(rows);
  std::vector<double> out;
  for (size_t row = 0; row < rows.size(); row += SoundBands::kBands) {
    double energy = 0;
    for (int c = 0; c < SoundBands::kBands; ++c)
      energy += std::max(std::exp(4.0 * rows[row + c] - 7) - 1e-6, 0.0);
    const double level = std::sqrt(energy / (SoundBands::kWindow / 2.0)) / 0.2;
    out.push_back(std::clamp(1.08 * std::pow(level, 0.6) - 0.08, 0.0, 1.0));
  }
  return out;
}

LipSync lip_sync(std::span<const double> opening, std::span<const double> loudness,
                 const std::vector<bool>& speaks) {
  const int n = int(std::min({opening.size(), loudness.size(), speaks.size()}));
  LipSync out;
  for (int lag = -kLargestLag; lag <= kLargestLag; ++lag) {
    std::vector<double> mouth, sound;
    for (int k = kLargestLag; k < n - kLargestLag; ++k) {
      if (!speaks[k] || !speaks[k - lag]) continue;
      mouth.push_back(opening[k]);
      sound.push_back(loudness[k - lag]);
    }
    const double found = correlation(mouth, sound);
    if (lag == 0) out.correlation = found;
    if (lag == -kLargestLag || found > out.best) {
      out.best = found;
      out.lag = lag;
    }
  }
  return out;
}

}  // namespace weft::pocket
