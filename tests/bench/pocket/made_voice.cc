#include "tests/bench/pocket/made_voice.h"

#include <cmath>
#include <numbers>
#include <random>

#include "io/sound/audio_features.h"

namespace weft::pocket {
namespace {

constexpr int kRate = SoundBands::kRate;

// Hz of the first two formants of a vowel (Peterson and Barney, 1952, table II).
struct Vowel {
  double first, second;
};
constexpr Vowel kVowels[] = {{730, 1090}, {530, 1840}, {270, 2290}, {570, 840}, {300, 870}};

double formant(double frequency, double centre, double width) {
  const double distance = (frequency - centre) / width;
  return std::exp(-distance * distance);
}

// Draws evenly distributed numbers that are the same with every standard library.
class Drawn {
 public:
  explicit Drawn(uint64_t seed) : engine_(seed) {}
  double between(double low, double high) {
    return low + (high - low) * static_cast<double>(engine_() >> 11) * 0x1p-53;
  }

 private:
  std::mt19937_64 engine_;
};

void append_syllable(Drawn& drawn, double pitch, std::vector<float>& samples) {
  const auto count = static_cast<int>(kRate * drawn.between(0.12, 0.28));
  const double loudness = drawn.between(0.25, 0.9), glide = drawn.between(-0.1, 0.1);
  const Vowel& vowel = kVowels[static_cast<int>(drawn.between(0, std::size(kVowels)))];
  constexpr int kHarmonics = 24;
  double weights[kHarmonics], sum = 0;
  for (int k = 0; k < kHarmonics; ++k) {
    const double frequency = pitch * (k + 1);
    weights[k] = (formant(frequency, vowel.first, 180) +
                  0.6 * formant(frequency, vowel.second, 260) + 0.05) /
                 (k + 1);
    sum += weights[k];
  }
  double phase = 0;
  for (int i = 0; i < count; ++i) {
    const double at = static_cast<double>(i) / count;
    phase += 2 * std::numbers::pi * pitch * (1 + glide * at) / kRate;
    double value = 0;
    for (int k = 0; k < kHarmonics; ++k) value += weights[k] * std::sin(phase * (k + 1));
    samples.push_back(static_cast<float>(loudness * std::sin(std::numbers::pi * at) * value / sum));
  }
}

}  // namespace

Sound made_voice(double seconds, uint64_t seed) {
  Drawn drawn(seed);
  const auto wanted = static_cast<size_t>(std::llround(seconds * kRate));
  Sound sound{kRate, {}};
  sound.samples.reserve(wanted + kRate);
  const double voice = drawn.between(95, 240);
  while (sound.samples.size() < wanted) {
    const double pitch = voice * drawn.between(0.9, 1.15);
    for (auto left = static_cast<int>(drawn.between(2, 9)); left > 0; --left)
      append_syllable(drawn, pitch * drawn.between(0.95, 1.05), sound.samples);
    sound.samples.resize(sound.samples.size() +
                         static_cast<size_t>(kRate * drawn.between(0.3, 0.9)));
  }
  sound.samples.resize(wanted);
  return sound;
}

}  // namespace weft::pocket
