#include "io/sound/audio_features.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace weft {
namespace {

constexpr double kLowest = 60, kHighest = 7600;  // Hz
constexpr double kFloor = 1e-6;                  // far below the noise of 16-bit samples
constexpr double kSumOfSquares = 384;            // of the window

double mel(double hz) { return 2595 * std::log10(1 + hz / 700); }
double hz_of_mel(double m) { return 700 * (std::pow(10, m / 2595) - 1); }

float scaled(double energy) {
  return float(std::clamp((std::log(kFloor + energy) + 7) / 4, -2.0, 4.0));
}

}  // namespace

float SoundBands::silence() { return scaled(0); }

SoundBands::SoundBands() {
  for (int j = 0; j < kWindow; ++j) {
    const double angle = 2 * std::numbers::pi * j / kWindow;
    hann_[j] = 0.5 - 0.5 * std::cos(angle);
    if (j < kWindow / 2) roots_[j] = {std::cos(angle), -std::sin(angle)};
  }
  const auto corner = [](int i) {
    return hz_of_mel(mel(kLowest) + i * (mel(kHighest) - mel(kLowest)) / (kBands + 1));
  };
  for (int c = 0; c < kBands; ++c) {
    const double low = corner(c), peak = corner(c + 1), high = corner(c + 2);
    const double step = double(kRate) / kWindow;
    Band& band = bands_[c];
    band.first = int(std::ceil(low / step));
    for (int b = band.first; b * step < high; ++b)
      band.weights.push_back(std::min((b * step - low) / (peak - low),  //
                                      (high - b * step) / (high - peak)));
  }
}

void SoundBands::push(std::span<const float> samples, std::vector<float>& rows) {
  while (!samples.empty()) {
    const size_t count = std::min(samples.size(), size_t(kHop - fresh_));
    std::copy(window_.begin() + int64_t(count), window_.end(), window_.begin());
    std::copy_n(samples.begin(), count, window_.end() - int64_t(count));
    samples = samples.subspan(count);
    fresh_ += int(count);
    if (fresh_ == kHop) add_row(rows);
  }
}

void SoundBands::finish(std::vector<float>& rows) {
  constexpr std::array<float, kHop> kZeros{};
  if (fresh_ > 0) push(std::span(kZeros).first(kHop - fresh_), rows);
  window_.fill(0);
}

void SoundBands::add_row(std::vector<float>& rows) {
  fresh_ = 0;
  for (int j = 0; j < kWindow; ++j) spectrum_[j] = window_[j] * hann_[j];
  transform();
  for (const Band& band : bands_) {
    double energy = 0;
    for (size_t i = 0; i < band.weights.size(); ++i)
      energy += band.weights[i] * std::norm(spectrum_[band.first + int(i)]);
    rows.push_back(scaled(energy / kSumOfSquares));
  }
}

void SoundBands::transform() {
  for (int i = 1, j = 0; i < kWindow; ++i) {  // j is i with its bits in reverse order
    int bit = kWindow / 2;
    for (; j & bit; bit /= 2) j ^= bit;
    j |= bit;
    if (i < j) std::swap(spectrum_[i], spectrum_[j]);
  }
  for (int half = 1; half < kWindow; half *= 2)
    for (int start = 0; start < kWindow; start += 2 * half)
      for (int k = 0; k < half; ++k) {
        const std::complex<double> a = spectrum_[start + k], b = spectrum_[start + k + half];
        const std::complex<double> root = roots_[k * (kWindow / 2 / half)];
        const std::complex<double> turned(b.real() * root.real() - b.imag() * root.imag(),
                                          b.real() * root.imag() + b.imag() * root.real());
        spectrum_[start + k] = a + turned;
        spectrum_[start + k + half] = a - turned;
      }
}

}  // namespace weft
