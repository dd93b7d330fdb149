#pragma once
// Shared by the tests of sound: a sound like a voice, its pieces, and WAV files.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numbers>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace weft {

// Syllables of a few harmonics with some noise, pauses between them; full scale ±1.
inline std::vector<float> voice(int rate, size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> uniform(0, 1);
  std::vector<float> sound(count);
  const double pitch = 90 + 120 * uniform(random), pace = 3 + 2 * uniform(random);
  for (size_t i = 0; i < count; ++i) {
    const double t = double(i) / rate;
    const double loud = std::max(0.0, std::sin(2 * std::numbers::pi * pace * t));
    double value = 0;
    for (int h = 1; h <= 8; ++h) value += std::sin(2 * std::numbers::pi * pitch * h * t + h) / h;
    sound[i] = float(0.2 * loud * (value + 0.3 * (uniform(random) - 0.5)));
  }
  return sound;
}

// Calls `use` with the pieces of a sound, of random sizes from 1 to 3000, single samples often.
template <class Use>
void for_pieces(std::span<const float> sound, int seed, Use&& use) {
  std::mt19937 random{uint32_t(seed)};
  while (!sound.empty()) {
    const size_t wanted = random() % 4 == 0 ? 1 : 1 + random() % 3000;
    const size_t count = std::min(sound.size(), wanted);
    use(sound.first(count));
    sound = sound.subspan(count);
  }
}

// A WAV file of 16-bit samples, interleaved where there are several channels.
inline std::string wav_bytes(const std::vector<int16_t>& samples, int rate, int channels = 1) {
  const auto put = [](std::string& out, uint32_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out += char(value >> (8 * i) & 255);
  };
  std::string data(reinterpret_cast<const char*>(samples.data()), 2 * samples.size());
  std::string out = "RIFF";
  put(out, uint32_t(36 + data.size()), 4);
  out += "WAVEfmt ";
  put(out, 16, 4);
  put(out, 1, 2);
  put(out, uint32_t(channels), 2);
  put(out, uint32_t(rate), 4);
  put(out, uint32_t(rate * channels * 2), 4);
  put(out, uint32_t(channels * 2), 2);
  put(out, 16, 2);
  out += "data";
  put(out, uint32_t(data.size()), 4);
  return out + data;
}

inline std::vector<int16_t> s16_of(const std::vector<float>& sound) {
  std::vector<int16_t> samples(sound.size());
  for (size_t i = 0; i < sound.size(); ++i) samples[i] = int16_t(std::lround(sound[i] * 32767));
  return samples;
}

}  // namespace weft
