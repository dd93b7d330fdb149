#include "tests/support/voice.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

#include "tests/support/draw.h"

namespace weft::pocket {
namespace {

using Formants = std::array<double, 3>;  // Hz

constexpr int kRate = 16000, kStep = 80;  // samples; the contours have 200 points a second
constexpr Formants kWidths = {80, 110, 160};
constexpr Formants kVowels[] = {{760, 1250, 2550}, {560, 920, 2450},  {330, 720, 2300},
                                {480, 2000, 2650}, {300, 2300, 3000}, {700, 1600, 2500}};

// A draw between two numbers.
double between(test::Draw& draw, double low, double high) {
  return low + (high - low) * (draw.uniform() + 1) / 2;
}

// A voice over time, by points of the contours.
struct Contours {
  std::vector<double> power, hiss, pitch;  // Hz
  std::vector<Formants> formants;
};

// The mean over `reach` points to either side.
std::vector<double> softened(const std::vector<double>& values, int reach) {
  const int n = int(values.size());
  std::vector<double> out(values.size());
  for (int i = 0; i < n; ++i)
    for (int k = i - reach; k <= i + reach; ++k)
      if (k >= 0 && k < n) out[size_t(i)] += values[size_t(k)] / (2 * reach + 1);
  return out;
}

void add_syllable(Contours& voice, test::Draw& draw, int at, int length, double tract) {
  const int points = int(voice.power.size());
  const int begin = int(length * between(draw, 0.1, 0.35)), sounding = std::max(length - begin, 4);
  Formants vowel = kVowels[draw.below(std::ssize(kVowels))];
  for (double& f : vowel) f *= tract * between(draw, 0.95, 1.05);
  const double bow = between(draw, 0.4, 1.2), loud = between(draw, 0.35, 1);
  for (int k = 0; k < sounding && at + begin + k < points; ++k)
    voice.power[size_t(at + begin + k)] =
        loud * std::pow(std::sin(std::numbers::pi * (k + 0.5) / sounding), bow);
  std::fill(voice.formants.begin() + at, voice.formants.end(), vowel);
  if (!draw.maybe(0.5)) return;
  const double hiss = between(draw, 0.02, 0.25);
  for (int k = at; k < at + begin && k < points; ++k) voice.hiss[size_t(k)] = hiss;
}

Contours contours(test::Draw& draw, int points) {
  const auto n = size_t(points);
  Contours voice{
      std::vector<double>(n), std::vector<double>(n), std::vector<double>(n), {n, kVowels[0]}};
  const double tract = between(draw, 0.92, 1.15), rate = between(draw, 0.7, 1.3);
  int at = int(draw.below(40)), group = 3 + int(draw.below(7));
  while (at < points) {
    const int length = int(between(draw, 18, 55) * rate);
    add_syllable(voice, draw, at, length, tract);
    at += length;
    if (--group > 0) continue;
    at += int(between(draw, 20, 160));
    group = 3 + int(draw.below(9));
  }
  voice.power = softened(voice.power, 2);
  voice.hiss = softened(voice.hiss, 2);
  const double pitch = between(draw, 85, 240), period = between(draw, 25, 70);
  for (int k = 0; k < points; ++k)
    voice.pitch[size_t(k)] = std::clamp(pitch * (1 + 0.12 * std::sin(k / period)), 70.0, 320.0);
  return voice;
}

double resonance(double f, const Formants& formants) {
  double gain = 1;
  for (size_t j = 0; j < 3; ++j) {
    const double c = formants[j], off = f * f - c * c, width = kWidths[j] * f;
    gain *= c * c / std::sqrt(off * off + width * width);
  }
  return gain;
}

// The amplitudes of the harmonics at a point; their power is that of the contour.
std::vector<double> harmonics(const Contours& voice, size_t point, int count, double fall) {
  std::vector<double> out;
  double sum = 1e-9;
  for (int k = 1; k <= count; ++k) {
    const double gain =
        resonance(voice.pitch[point] * k, voice.formants[point]) / std::pow(k, fall);
    out.push_back(gain);
    sum += gain * gain;
  }
  for (double& amplitude : out) amplitude *= voice.power[point] / std::sqrt(sum);
  return out;
}

}  // namespace

std::vector<float> made_up_voice(int samples, uint32_t seed) {
  test::Draw draw(seed);
  const Contours voice = contours(draw, samples / kStep + 2);
  const double fall = between(draw, 0.8, 1.3), loud = between(draw, 0.08, 0.4);
  const double room = std::pow(10, between(draw, -4.5, -2.8));
  const int count = int(3800 / voice.pitch[0]);
  std::vector<double> now = harmonics(voice, 0, count, fall), next;
  std::vector<float> out;
  double phase = 0, last = 0, before = 0;
  for (int i = 0; i < samples; ++i) {
    const auto point = size_t(i / kStep);
    if (i % kStep == 0) {
      if (i > 0) now = std::move(next);
      next = harmonics(voice, point + 1, count, fall);
    }
    const double part = double(i % kStep) / kStep;
    phase +=
        2 * std::numbers::pi / kRate * std::lerp(voice.pitch[point], voice.pitch[point + 1], part);
    double value = 0;
    for (int k = 0; k < count; ++k)
      value += std::lerp(now[size_t(k)], next[size_t(k)], part) * std::sin((k + 1) * phase);
    const double white = draw.normal(), high = white - 2 * last + before;  // rises with frequency
    before = std::exchange(last, white);
    value += 0.3 * high * std::lerp(voice.hiss[point], voice.hiss[point + 1], part);
    value = loud * value + room * draw.normal();
    out.push_back(float(std::round(std::clamp(value, -1.0, 1.0) * 32767) / 32768));
  }
  return out;
}

}  // namespace weft::pocket
