#pragma once
// Frame: one RGB picture. FrameHash: the hash that clips are compared by.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "io/sha256.h"

namespace weft {

// 8 bits per channel, full range, sRGB/BT.709 primaries; rows from the top, 3 * width bytes each.
struct Frame {
  int width = 0, height = 0;
  std::vector<uint8_t> rgb;

  Frame() = default;
  Frame(int w, int h) : width(w), height(h), rgb(size_t{3} * w * h) {}
  uint8_t* at(int x, int y) { return rgb.data() + 3 * (size_t(y) * width + x); }
  const uint8_t* at(int x, int y) const { return rgb.data() + 3 * (size_t(y) * width + x); }
};

// The SHA-256 over the RGB bytes of the frames in order, and nothing else, so that any tool that
// writes raw rgb24 can reproduce it.
class FrameHash {
 public:
  // Goes on from a state(); "" begins anew.
  explicit FrameHash(const std::string& state = "") : hash_(state) {}
  void add(const Frame& frame) { hash_.update(frame.rgb.data(), frame.rgb.size()); }
  std::string state() const { return hash_.state(); }
  std::string hex() { return hash_.hex(); }  // ends the hash

 private:
  Sha256 hash_;
};

}  // namespace weft
