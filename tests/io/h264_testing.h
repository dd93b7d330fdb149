#pragma once
// Shared by the tests of live movies: the fields of a sequence parameter set (ITU-T
// H.264, 7.3.2.1.1 and E.1.1) that say what a decoder waits for.
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/check.h"

namespace weft {

class BitReader {
 public:
  explicit BitReader(std::vector<uint8_t> bytes) : bytes_(std::move(bytes)) {}
  uint32_t bits(int count) {
    uint32_t value = 0;
    for (; count > 0; --count, ++at_) {
      CHECK(at_ / 8 < bytes_.size(), at_, bytes_.size());
      value = value << 1 | (bytes_[at_ / 8] >> (7 - at_ % 8) & 1);
    }
    return value;
  }
  uint32_t golomb() {  // Exp-Golomb, ue(v)
    int zeros = 0;
    while (bits(1) == 0) ++zeros;
    CHECK(zeros < 32, zeros);
    return (1u << zeros) - 1 + bits(zeros);
  }

 private:
  std::vector<uint8_t> bytes_;
  size_t at_ = 0;
};

// The units of an access unit in Annex B, without their start codes.
inline std::vector<std::vector<uint8_t>> units_of(std::span<const uint8_t> bytes) {
  std::vector<std::vector<uint8_t>> units;
  for (size_t at = 0; at < bytes.size(); ++at) {
    if (at + 3 <= bytes.size() && bytes[at] == 0 && bytes[at + 1] == 0 && bytes[at + 2] == 1) {
      if (!units.empty() && !units.back().empty() && units.back().back() == 0)
        units.back().pop_back();  // the first zero of a start code of four bytes
      units.emplace_back();
      at += 2;
    } else if (!units.empty()) {
      units.back().push_back(bytes[at]);
    }
  }
  return units;
}

struct ParameterSet {
  uint32_t profile = 0, constraints = 0, level = 0;
  int max_reordered = -1, max_buffered = -1;  // -1: not given
};

// Parts of the video usability information; leaves the reader after it.
inline void read_usability(BitReader& in, ParameterSet& set) {
  if (in.bits(1) && in.bits(8) == 255) in.bits(32);  // aspect ratio
  if (in.bits(1)) in.bits(1);                        // overscan
  if (in.bits(1)) {                                  // video signal
    in.bits(4);
    if (in.bits(1)) in.bits(24);
  }
  if (in.bits(1)) in.golomb(), in.golomb();  // chroma position
  if (in.bits(1)) in.bits(32), in.bits(32), in.bits(1);
  CHECK(in.bits(2) == 0, "no HRD parameters are read here");
  in.bits(1);
  if (in.bits(1) == 0) return;  // bitstream restriction
  in.bits(1);
  for (int skipped = 0; skipped < 4; ++skipped) in.golomb();
  set.max_reordered = int(in.golomb());
  set.max_buffered = int(in.golomb());
}

// Reads a unit of type 7.
inline ParameterSet read_parameter_set(std::span<const uint8_t> unit) {
  std::vector<uint8_t> bytes;
  for (size_t i = 1; i < unit.size(); ++i)  // 3 after two zeros is not part of the payload
    if (!(unit[i] == 3 && i >= 3 && unit[i - 1] == 0 && unit[i - 2] == 0)) bytes.push_back(unit[i]);
  BitReader in(bytes);
  ParameterSet set{.profile = in.bits(8), .constraints = in.bits(8), .level = in.bits(8)};
  in.golomb();
  if (set.profile == 100) {
    CHECK(in.golomb() == 1, "4:2:0");
    in.golomb(), in.golomb(), in.bits(1);
    CHECK(in.bits(1) == 0, "no scaling lists are read here");
  }
  in.golomb();
  const uint32_t order = in.golomb();
  CHECK(order != 1, order);
  if (order == 0) in.golomb();
  in.golomb(), in.bits(1), in.golomb(), in.golomb();
  if (in.bits(1) == 0) in.bits(1);
  in.bits(1);
  if (in.bits(1))
    for (int side = 0; side < 4; ++side) in.golomb();
  if (in.bits(1)) read_usability(in, set);
  return set;
}

}  // namespace weft
