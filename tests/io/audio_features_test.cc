#include "io/sound/audio_features.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "tests/io/sound_testing.h"

namespace weft {
namespace {

// The definition in the header, word for word, for one picture of a whole sound.
std::vector<double> bands_by_definition(const std::vector<float>& sound, int64_t picture) {
  constexpr int kN = 1024;
  std::vector<double> y(kN), power(kN / 2 + 1);
  for (int j = 0; j < kN; ++j) {
    const int64_t at = 640 * (picture + 1) - kN + j;
    const double x = at >= 0 && at < int64_t(sound.size()) ? sound[size_t(at)] : 0;
    y[j] = x * (0.5 - 0.5 * std::cos(2 * std::numbers::pi * j / kN));
  }
  for (int b = 0; b <= kN / 2; ++b) {
    double re = 0, im = 0;
    for (int j = 0; j < kN; ++j) {
      const double angle = 2 * std::numbers::pi * double(b * j % kN) / kN;
      re += y[j] * std::cos(angle);
      im -= y[j] * std::sin(angle);
    }
    power[b] = re * re + im * im;
  }
  const auto mel = [](double f) { return 2595 * std::log10(1 + f / 700); };
  std::vector<double> edge(34), row(32);
  for (int i = 0; i < 34; ++i)
    edge[i] = 700 * (std::pow(10, (mel(60) + i * (mel(7600) - mel(60)) / 33) / 2595) - 1);
  for (int c = 0; c < 32; ++c) {
    double energy = 0;
    for (int b = 0; b <= kN / 2; ++b) {
      const double f = 15.625 * b;
      energy += power[b] * std::max(0.0, std::min((f - edge[c]) / (edge[c + 1] - edge[c]),
                                                  (edge[c + 2] - f) / (edge[c + 2] - edge[c + 1])));
    }
    row[c] = std::min(4.0, std::max(-2.0, (std::log(1e-6 + energy / 384) + 7) / 4));
  }
  return row;
}

std::vector<float> whole_rows(const std::vector<float>& sound) {
  SoundBands bands;
  std::vector<float> rows;
  bands.push(sound, rows);
  bands.finish(rows);
  return rows;
}

TEST(SoundBands, RowsAreThoseOfTheDefinition) {
  const std::vector<float> sound = voice(16000, 5 * 640 + 123, 3);
  const std::vector<float> rows = whole_rows(sound);
  ASSERT_EQ(rows.size(), 6u * 32);
  for (int k = 0; k < 6; ++k) {
    const std::vector<double> expected = bands_by_definition(sound, k);
    for (int c = 0; c < 32; ++c) EXPECT_NEAR(rows[k * 32 + c], expected[c], 1e-6) << k << ' ' << c;
  }
}

TEST(SoundBands, PiecesOfAnySizeGiveTheBitsOfTheWhole) {
  const std::vector<float> sound = voice(16000, 16000 * 3 + 77, 4);
  const std::vector<float> expected = whole_rows(sound);
  ASSERT_EQ(expected.size(), size_t(32 * (16000 * 3 + 77 + 639) / 640 / 32 * 32));
  for (int seed = 0; seed < 20; ++seed) {
    SoundBands bands;
    std::vector<float> rows;
    for_pieces(sound, seed, [&](std::span<const float> piece) { bands.push(piece, rows); });
    bands.finish(rows);
    EXPECT_EQ(rows, expected) << seed;
    // It begins anew, without the left context of the last sound.
    rows.clear();
    bands.push(sound, rows);
    bands.finish(rows);
    EXPECT_EQ(rows, expected) << seed;
  }
}

TEST(SoundBands, SilenceIsOneConstantAndNotZero) {
  const std::vector<float> rows = whole_rows(std::vector<float>(640 * 4));
  ASSERT_EQ(rows.size(), 4u * 32);
  for (const float value : rows) EXPECT_EQ(value, SoundBands::silence());
  EXPECT_FLOAT_EQ(SoundBands::silence(), float((std::log(1e-6) + 7) / 4));
}

TEST(SoundBands, ToneIsLoudestInItsBandAndTheLeftContextEnds) {
  for (const double hz : {200.0, 1000.0, 3000.0, 6000.0}) {
    std::vector<float> sound(640 * 10);
    for (size_t i = 0; i < 640 * 5; ++i)
      sound[i] = float(std::sin(2 * std::numbers::pi * hz * double(i) / 16000));
    const std::vector<float> rows = whole_rows(sound);
    const auto row = rows.begin() + 2 * 32;
    const auto loudest = std::max_element(row, row + 32) - row;
    const auto mel = [](double f) { return 2595 * std::log10(1 + f / 700); };
    const double band = (mel(hz) - mel(60)) / (mel(7600) - mel(60)) * 33 - 1;
    EXPECT_NEAR(double(loudest), band, 1.0) << hz;
    EXPECT_GT(row[loudest], 2.5f) << hz;
    // Picture 5 sees 384 samples of the tone, picture 6 none.
    EXPECT_GT(rows[5 * 32 + loudest], SoundBands::silence() + 0.5f);
    for (int c = 0; c < 32; ++c) EXPECT_EQ(rows[6 * 32 + c], SoundBands::silence());
  }
}

}  // namespace
}  // namespace weft
