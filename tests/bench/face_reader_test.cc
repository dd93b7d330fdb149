#include "tests/bench/pocket/face_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "io/media/image.h"
#include "io/weights/tensor_file.h"
#include "tests/support/draw.h"
#include "tests/support/face.h"

namespace weft::pocket {
namespace {

FaceLook look_number(int i) {
  return {Skin(i % kSkins), Hair(i / 4 % kHairs), Backdrop(i / 16 % kBackdrops),
          Mood(i / 64 % kMoods)};
}
constexpr int kLooks = kSkins * kHairs * kBackdrops * kMoods;

double correlation_of(const std::vector<double>& a, const std::vector<double>& b) {
  double ma = 0, mb = 0, ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ma += a[i] / double(a.size());
    mb += b[i] / double(b.size());
  }
  for (size_t i = 0; i < a.size(); ++i) {
    ab += (a[i] - ma) * (b[i] - mb);
    aa += (a[i] - ma) * (a[i] - ma);
    bb += (b[i] - mb) * (b[i] - mb);
  }
  return ab / std::sqrt(aa * bb);
}

// A Gaussian of 0.8 pixels and noise of 4 levels: about what the avatar's autoencoder leaves.
Frame blurred(const Frame& frame, uint32_t seed) {
  test::Draw draw(seed);
  std::array<double, 7> taps;
  for (int k = 0; k < 7; ++k) taps[size_t(k)] = std::exp(-0.5 * std::pow((k - 3) / 0.8, 2));
  const double sum = std::accumulate(taps.begin(), taps.end(), 0.0);
  const auto pass = [&](const std::vector<double>& from, int dx, int dy) {
    std::vector<double> out(from.size());
    for (int y = 0; y < frame.height; ++y)
      for (int x = 0; x < frame.width; ++x)
        for (int k = 0; k < 7; ++k) {
          const int u = std::clamp(x + dx * (k - 3), 0, frame.width - 1);
          const int v = std::clamp(y + dy * (k - 3), 0, frame.height - 1);
          for (int c = 0; c < 3; ++c)
            out[size_t(3 * (y * frame.width + x) + c)] +=
                taps[size_t(k)] / sum * from[size_t(3 * (v * frame.width + u) + c)];
        }
    return out;
  };
  const std::vector<double> whole(frame.rgb.begin(), frame.rgb.end());
  const std::vector<double> soft = pass(pass(whole, 1, 0), 0, 1);
  Frame out(frame.width, frame.height);
  for (size_t i = 0; i < soft.size(); ++i)
    out.rgb[i] = uint8_t(std::lround(std::clamp(soft[i] + 4 * draw.normal(), 0.0, 255.0)));
  return out;
}

// Strides are prime to the number of looks, so that all words meet.
struct Score {
  int clips = 0, skin = 0, hair = 0, backdrop = 0, mood = 0, pictures = 0, shut = 0, unseen = 0;
  double opening = 0, gaze = 0, lids = 0;  // correlations with the truth
};

template <class Spoil>
Score face_score(int stride, int pictures, Spoil&& spoil) {
  Score out;
  std::vector<double> opened, opening, looked, gaze, lowered, lids;
  for (int i = 0; i < kLooks; i += stride, ++out.clips) {
    const FaceLook look = look_number(i);
    std::vector<FaceReading> readings;
    for (const FacePose& pose : face_poses(pictures, uint32_t(100 + i))) {
      const FaceReading reading =
          read_face(spoil(draw_face(look, pose), uint32_t(i * 1000 + std::ssize(readings))));
      opened.push_back(pose.opening);
      opening.push_back(reading.opening);
      lowered.push_back(pose.lids);
      lids.push_back(reading.lids);
      out.shut += reading.shut == (pose.lids > 0.7);
      if (reading.gaze) {
        looked.push_back(pose.gaze);
        gaze.push_back(*reading.gaze);
      } else if (pose.lids < 0.7) {
        ++out.unseen;
      }
      readings.push_back(reading);
      ++out.pictures;
    }
    const FaceLook read = look_of(readings);
    out.skin += read.skin == look.skin;
    out.hair += read.hair == look.hair;
    out.backdrop += read.backdrop == look.backdrop;
    out.mood += read.mood == look.mood;
  }
  out.opening = correlation_of(opened, opening);
  out.gaze = correlation_of(looked, gaze);
  out.lids = correlation_of(lowered, lids);
  return out;
}

TEST(FaceReader, DrawnFaces) {
  const Score s = face_score(5, 40, [](const Frame& frame, uint32_t) { return frame; });
  EXPECT_EQ(s.clips, 39);
  EXPECT_EQ(s.skin, s.clips);
  EXPECT_EQ(s.hair, s.clips);
  EXPECT_EQ(s.backdrop, s.clips);
  EXPECT_EQ(s.mood, s.clips);
  EXPECT_EQ(s.shut, s.pictures);
  EXPECT_EQ(s.unseen, 0);
  EXPECT_GE(s.opening, 0.99);
  EXPECT_GE(s.gaze, 0.98);
  EXPECT_GE(s.lids, 0.95);
}

TEST(FaceReader, BlurAndNoise) {
  const Score s = face_score(7, 25, blurred);
  EXPECT_EQ(s.skin, s.clips);
  EXPECT_EQ(s.hair, s.clips);
  EXPECT_EQ(s.backdrop, s.clips);
  EXPECT_GE(s.mood, 0.9 * s.clips);
  EXPECT_GE(s.shut, 0.95 * s.pictures);
  EXPECT_GE(s.opening, 0.95);
  EXPECT_GE(s.gaze, 0.95);
  EXPECT_GE(s.lids, 0.9);
}

// The recipe's reader has written down what it reads from pictures that the model drew.
TEST(FaceReader, ReadsWhatTheRecipesReaderReads) {
  const Frame sheet = read_png("tests/engine/avatar/pictures.png");
  const TensorFile file = TensorFile::open("tests/engine/avatar/stream.safetensors");
  const TensorView theirs = file.view("readings");  // opening, lids, shut, gaze (or 9), bend, frown
  ASSERT_EQ(theirs[1], 6);
  const int across = sheet.width / kFaceSize;
  for (int i = 0; i < theirs[0]; ++i) {
    Frame picture(kFaceSize, kFaceSize);
    for (int y = 0; y < kFaceSize; ++y)
      std::copy_n(sheet.at(i % across * kFaceSize, i / across * kFaceSize + y), 3 * kFaceSize,
                  picture.at(0, y));
    const FaceReading ours = read_face(picture);
    const float* wanted = theirs.as<float>() + 6 * i;
    EXPECT_NEAR(ours.opening, wanted[0], 1e-5) << i;
    EXPECT_NEAR(ours.lids, wanted[1], 1e-5) << i;
    EXPECT_EQ(ours.shut, wanted[2] != 0) << i;
    EXPECT_NEAR(ours.gaze.value_or(9), wanted[3], 1e-5) << i;
    EXPECT_NEAR(ours.bend, wanted[4], 1e-5) << i;
    EXPECT_NEAR(ours.frown, wanted[5], 1e-5) << i;
    EXPECT_EQ(ours.skin, Skin::kTan) << i;
    EXPECT_EQ(ours.hair, Hair::kRed) << i;
    EXPECT_EQ(ours.backdrop, Backdrop::kNavy) << i;
  }
}

TEST(FaceReader, ANewLookHasItsCaption) {
  EXPECT_EQ(caption_of({Skin::kDark, Hair::kGray, Backdrop::kWhite, Mood::kStern}),
            "a stern face with dark skin and gray hair on a white background");
}

// Tones of 25 ms to 40 ms, at loudnesses that vary.
std::vector<float> tones(int pictures) {
  test::Draw draw(5);
  std::vector<float> sound;
  for (int k = 0; k < pictures; ++k) {
    const double loud = draw.maybe(0.4) ? 0 : 0.2 * (draw.uniform() + 1);
    for (int i = 0; i < 640; ++i) sound.push_back(float(loud * std::sin(0.3 * i)));
  }
  return sound;
}

TEST(FaceReader, LoudnessIsThatOfTheSound) {
  std::vector<float> sound(640 * 4);
  for (size_t i = 640; i < 640 * 3; ++i) sound[i] = float(0.2 * std::sqrt(2) * std::sin(0.4 * i));
  sound.resize(640 * 3 + 100);
  const std::vector<double> loudness = loudness_of(sound);
  ASSERT_EQ(loudness.size(), 4u);  // the last one is filled up
  EXPECT_EQ(loudness[0], 0);
  EXPECT_GT(loudness[1], 0.5);
  EXPECT_LT(loudness[1], loudness[2]);
  EXPECT_NEAR(loudness[2], 1, 0.03);  // a root mean square of 0.2
  EXPECT_LT(loudness[3], loudness[1]);
}

TEST(FaceReader, LagAndCorrelationOfTheMouthAreFound) {
  const std::vector<double> loudness = loudness_of(tones(100));
  for (const int late : {-4, -1, 0, 2, 5}) {
    std::vector<double> mouth(100);
    test::Draw draw(7);
    for (int k = 0; k < 100; ++k) {
      const int from = std::clamp(k - late, 0, 99);
      mouth[size_t(k)] = 0.8 * loudness[size_t(from)] + 0.02 * draw.normal();
    }
    const LipSync sync = lip_sync(mouth, loudness, std::vector<bool>(100, true));
    EXPECT_EQ(sync.lag, late);
    EXPECT_GT(sync.best, 0.95);
    if (late == 0)
      EXPECT_EQ(sync.correlation, sync.best);
    else
      EXPECT_LT(sync.correlation, 0.75);
  }
}

// Pictures whose sound is not the face's own say nothing, and neither does a mouth that stands
// still.
TEST(FaceReader, OnlySpeakingPicturesCount) {
  const std::vector<double> loudness = loudness_of(tones(100));
  std::vector<double> mouth = loudness;
  std::vector<bool> speaks(100, true);
  for (size_t k = 50; k < 100; ++k) {
    speaks[k] = false;
    mouth[k] = 1 - loudness[k];
  }
  const LipSync sync = lip_sync(mouth, loudness, speaks);
  EXPECT_EQ(sync.lag, 0);
  EXPECT_NEAR(sync.correlation, 1, 1e-9);
  EXPECT_LT(lip_sync(mouth, loudness, std::vector<bool>(100, true)).correlation, 0.6);
  EXPECT_EQ(lip_sync(std::vector<double>(100, 0.3), loudness, speaks).correlation, 0);
}

}  // namespace
}  // namespace weft::pocket
