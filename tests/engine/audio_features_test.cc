#include "engine/parts/audio_features.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/error_of.h"
#include "tests/support/golden_case.h"

namespace weft::test {
namespace {

constexpr AudioEncoderTraits kLarge{{.columns = 1024}, 16000, 320, 400, 25};

// The samples whose states have so many rows.
int64_t samples_of(int64_t rows) { return (rows - 1) * kLarge.hop + kLarge.window; }

TEST(AudioFeatures, RowsAreTruncated) {
  EXPECT_EQ(kLarge.rows(399), 0);
  EXPECT_EQ(kLarge.rows(400), 1);
  EXPECT_EQ(kLarge.rows(719), 1);
  EXPECT_EQ(kLarge.rows(720), 2);
  EXPECT_EQ(feature_rows(kLarge, samples_of(205)), 122);  // and not 123
  EXPECT_EQ(feature_rows(kLarge, samples_of(94)), 56);
  EXPECT_EQ(feature_rows(kLarge, samples_of(2)), 1);
  EXPECT_EQ(feature_rows(kLarge, samples_of(50)), 30);
  expect_error(ErrorKind::kMedia, "400 samples at 16000 Hz (legal: at least 720)",
               [&] { feature_rows(kLarge, samples_of(1)); });
}

TEST(AudioFeatures, FramesTakeTheNearestRowAndTiesTheEvenOne) {
  const std::vector<int64_t> taken = rows_of_frames(1000, 16, 80);
  const std::vector<int64_t> first{0, 2, 4, 6, 8, 9, 11, 13, 15, 17, 19, 21, 22, 24, 26, 28};
  for (size_t i = 0; i < 80; ++i)
    EXPECT_EQ(taken[i], first[i % 16] + 30 * static_cast<int64_t>(i / 16)) << i;
  const std::vector<int64_t> at_25 = rows_of_frames(1000, 25, 48);
  for (size_t i = 0; i < 48; ++i)
    EXPECT_EQ(at_25[i], std::lround(static_cast<double>(i) * 1.2)) << i;
}

// A clip more than the sound fills, also where it ends with a clip.
TEST(AudioFeatures, ClipsAreWholeAndEndInSilence) {
  for (const auto& [rows, clips] : {std::pair{1, 1}, {149, 1}, {150, 2}, {151, 2}, {300, 3}}) {
    const std::vector<int64_t> taken = rows_of_frames(rows, 16, 80);
    ASSERT_EQ(taken.size(), 80u * static_cast<size_t>(clips)) << rows;
    for (size_t i = 0; i < taken.size(); ++i) {
      const auto row = static_cast<int64_t>(std::nearbyint(static_cast<double>(i) * 1.875));
      EXPECT_EQ(taken[i], row < rows ? row : -1) << rows << " " << i;
    }
  }
}

TEST(AudioFeatures, EndsStayAndRowsBetweenAreOnALine) {
  Tensor state(DType::kF32, {5, 2}), out(DType::kF32, {9, 2}), one(DType::kF32, {1, 2});
  for (int64_t i = 0; i < 5; ++i) {
    state.as<float>()[2 * i] = static_cast<float>(i * i);
    state.as<float>()[2 * i + 1] = static_cast<float>(-i);
  }
  resample_rows(state, out);
  for (int64_t i = 0; i < 9; ++i) {
    const int64_t half = i / 2;
    const auto a = static_cast<float>(half * half), b = static_cast<float>((half + 1) * (half + 1));
    EXPECT_FLOAT_EQ(out.as<float>()[2 * i], i % 2 ? (a + b) / 2 : a) << i;
    EXPECT_FLOAT_EQ(out.as<float>()[2 * i + 1], -0.5f * static_cast<float>(i)) << i;
  }
  resample_rows(state, one);
  EXPECT_EQ(one.as<float>()[0], 0);
  const int64_t taken[] = {2, -1, 0};
  Tensor columns(DType::kF32, {2, 3});
  take_rows(state, taken, columns);
  const float expected[] = {4, 0, 0, -2, 0, 0};
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(columns.as<float>()[i], expected[i]) << i;
}

// The features that the reference makes of its own hidden states.
TEST(AudioFeatures, OfTheGoldenStates) {
  for (const char* name : {"wav2vec2_tiny", "wav2vec2_bare_names"}) {
    const GoldenCase golden(name);
    const Tensor features = load_tensor(golden.expected, "features.30hz");
    const int64_t n = features.view()[1], d = features.view()[2];
    EXPECT_EQ(feature_rows(kLarge, golden.input("waveform").count()), n);
    for (const auto& [fps, frames] : golden.spec.at("infer_frames").items()) {
      const std::vector<int64_t> taken = rows_of_frames(n, std::stod(fps), frames.get<int64_t>());
      Tensor bucket(DType::kF32, {features.view()[0], d, std::ssize(taken)});
      for (int64_t k = 0; k < features.view()[0]; ++k) {
        const Tensor state = load_tensor(golden.expected, "hidden_states." + std::to_string(k));
        Tensor rows(DType::kF32, {n, d});
        resample_rows(state, rows);
        EXPECT_LT(relative_l2(to_f64(rows), to_f64(features.view().select(0, k))), 1e-5);
        take_rows(rows, taken, bucket.view().select(0, k));
      }
      EXPECT_LT(relative_l2(to_f64(bucket), to_f64(load_tensor(golden.expected, "bucket." + fps))),
                1e-5);
    }
  }
}

}  // namespace
}  // namespace weft::test
