#pragma once
// Media times as whole numbers: computed from an index, exact and rounded once, so that nothing
// adds up over a long stream.
#include <cmath>
#include <cstdint>
#include <utility>

namespace weft {

// Things per second, as a fraction: {25, 1}, {30000, 1001}.
struct MediaRate {
  int64_t num = 25, den = 1;
};

// The fraction of a number of things per second. A rate of NTSC that was rounded, such as 23.976,
// is the exact one, 24000/1001; others are the simplest fraction that is as near as 1e-9.
inline MediaRate media_rate(double per_second) {
  constexpr double kRounded = 2e-6, kNear = 1e-9;
  constexpr int64_t kMostDen = 100'000;
  const int64_t whole = std::llround(per_second * 1.001);
  if (whole > 0 && per_second != std::floor(per_second) &&
      std::abs(per_second * 1.001 / double(whole) - 1) < kRounded)
    return {whole * 1000, 1001};
  // Convergents of the continued fraction: the newest and the one before.
  MediaRate rate{std::llround(std::floor(per_second)), 1}, before{1, 0};
  double rest = per_second - std::floor(per_second);
  while (std::abs(double(rate.num) / double(rate.den) - per_second) > kNear * per_second) {
    const double term = std::floor(1 / rest);
    rest = 1 / rest - term;
    const auto next = [&](int64_t newest, int64_t older) {
      return std::llround(term) * newest + older;
    };
    if (next(rate.den, before.den) > kMostDen) break;
    before = std::exchange(rate, {next(rate.num, before.num), next(rate.den, before.den)});
  }
  return rate;
}
// The same as a number, which changes rounded rates of NTSC alone.
inline double exact_rate(double per_second) {
  const MediaRate rate = media_rate(per_second);
  return rate.den == 1001 ? double(rate.num) / 1001 : per_second;
}

// The start of item `index` >= 0 in ticks of a clock that runs at `ticks` per second:
// round(index * ticks / rate), halves up. So the k-th picture's presentation time is
// ticks_at(k, pictures, timescale), and the first sample that belongs to it is
// ticks_at(k, pictures, sample rate).
inline int64_t ticks_at(int64_t index, MediaRate rate, int64_t ticks) {
  __extension__ using Wide = __int128;
  return static_cast<int64_t>((Wide{2} * index * rate.den * ticks + rate.num) /
                              (2 * Wide{rate.num}));
}

}  // namespace weft
