#pragma once
// A sound file for tests.
#include <cmath>
#include <cstdint>
#include <fstream>
#include <string>

namespace weft::test {

// A tone of 200 Hz that swells three times a second, as a WAV file of 16-bit samples.
inline void write_tone(const std::string& path, double seconds) {
  const auto count = static_cast<uint32_t>(seconds * 16000);
  std::ofstream file(path, std::ios::binary);
  const auto number = [&](uint32_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) file.put(static_cast<char>(value >> (8 * i)));
  };
  file << "RIFF";
  number(36 + 2 * count, 4);
  file << "WAVEfmt ";
  number(16, 4);
  number(1, 2);
  number(1, 2);
  number(16000, 4);
  number(32000, 4);
  number(2, 2);
  number(16, 2);
  file << "data";
  number(2 * count, 4);
  for (uint32_t i = 0; i < count; ++i) {
    const double t = i / 16000.0;
    const double value = 0.5 * std::sin(1256.6 * t) * (0.5 + 0.5 * std::sin(18.8 * t));
    number(static_cast<uint16_t>(static_cast<int16_t>(std::lround(32767 * value))), 2);
  }
}

}  // namespace weft::test
