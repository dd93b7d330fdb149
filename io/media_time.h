#pragma once
// Media times as whole numbers: computed from an index, exact and rounded once, so that nothing
// adds up over a long stream.
#include <cstdint>

namespace weft {

// Things per second, as a fraction: {25, 1}, {30000, 1001}.
struct MediaRate {
  int64_t num = 25, den = 1;
};

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
