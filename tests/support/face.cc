#include "tests/support/face.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "tests/support/draw.h"

namespace weft::pocket {
namespace {

using Paint = std::array<double, 3>;

Paint shade(const FacePaint& paint, double share) {
  return {share * paint.rgb[0], share * paint.rgb[1], share * paint.rgb[2]};
}

// The covered part of a pixel at (x, y) of an ellipse.
double ellipse(double x, double y, double cx, double cy, double rx, double ry) {
  const double dx = (x - cx) / rx, dy = (y - cy) / ry;
  const double r = std::sqrt(dx * dx + dy * dy + 1e-9);
  const double slope = std::sqrt(dx * dx / (rx * rx) + dy * dy / (ry * ry) + 1e-9) / r;
  return std::clamp((1 - r) / slope + 0.5, 0.0, 1.0);
}

class Pixel {
 public:
  Pixel(const FaceLook& look, const FacePose& pose, double x, double y)
      : look_(look), pose_(pose), x_(x), y_(y), head_(50 + pose.low) {
    for (int c = 0; c < 3; ++c)
      colour_[c] = paint_of(look.backdrop).rgb[c] + 8 * (0.5 - y / kFaceSize);
    draw_head();
    draw_eyes();
    put(shade(paint_of(look.skin), 0.8), ellipse(x, y, 48, head_ + 8, 2.4, 3.6));  // nose
    draw_mouth();
  }

  uint8_t level(int c) const { return uint8_t(std::lround(std::clamp(colour_[c], 0.0, 255.0))); }

 private:
  void put(const Paint& paint, double cover) {
    for (int c = 0; c < 3; ++c) colour_[c] += (paint[c] - colour_[c]) * cover;
  }

  void draw_head() {
    put(shade(paint_of(look_.skin), 0.82), ellipse(x_, y_, 48, 98, 15, 22));
    put(shade(paint_of(look_.hair), 1), ellipse(x_, y_, 48, head_ - 8, 33, 35));
    put(shade(paint_of(look_.skin), 1), ellipse(x_, y_, 48, head_ + 2, 27, 34));
    put(shade(paint_of(look_.hair), 1), ellipse(x_, y_, 48, head_ - 30, 27, 15));
  }

  void draw_eyes() {
    const double tilt = std::array{0.0, -0.12, 0.45}[size_t(look_.mood)];
    const double lift = std::array{0.0, -2.5, 1.0}[size_t(look_.mood)];
    for (const int side : {-1, 1}) {
      const double ex = 48 + 11.5 * side, ey = head_ - 3;
      const double eye = ellipse(x_, y_, ex, ey, 6.5, 5.2 * (1 - 0.88 * pose_.lids));
      put({248, 248, 248}, eye);
      put({30, 34, 48}, eye * ellipse(x_, y_, ex + 3.2 * pose_.gaze, ey, 3.2, 3.6));
      const double middle = ey - 9.5 + lift - tilt * side * (x_ - ex);
      const double brow = std::max(std::abs(x_ - ex) - 7.5, std::abs(y_ - middle) - 1.4);
      put(shade(paint_of(look_.hair), 0.6), std::clamp(0.5 - brow, 0.0, 1.0));
    }
  }

  void draw_mouth() {
    const double half = 9.5 + (pose_.width > 0 ? 3.5 : 4.0) * pose_.width;
    const double bend = std::array{0.0, 4.0, -3.0}[size_t(look_.mood)] * (1 - 0.5 * pose_.opening);
    const double along = (x_ - 48) / half;
    const double my = head_ + 20.5 - bend * std::min(along * along, 1.0) + 0.5 * bend;
    put({170, 62, 66}, ellipse(x_, y_, 48, my, half + 1.5, 1.9 + 8 * pose_.opening));
    if (pose_.opening > 0.02)
      put({46, 12, 18}, ellipse(x_, y_, 48, my, half - 0.5, 0.35 + 7.6 * pose_.opening));
  }

  const FaceLook& look_;
  const FacePose& pose_;
  const double x_, y_, head_;
  Paint colour_;
};

}  // namespace

Frame draw_face(const FaceLook& look, const FacePose& pose) {
  Frame frame(kFaceSize, kFaceSize);
  for (int y = 0; y < kFaceSize; ++y)
    for (int x = 0; x < kFaceSize; ++x) {
      const Pixel pixel(look, pose, x + 0.5, y + 0.5);
      for (int c = 0; c < 3; ++c) frame.at(x, y)[c] = pixel.level(c);
    }
  return frame;
}

std::vector<FacePose> face_poses(int pictures, uint32_t seed) {
  test::Draw draw(seed);
  std::vector<FacePose> poses(pictures);
  double loud = 0, width = 0, gaze = 0, low = 0;
  int blink = 5 + int(draw.below(10));
  for (int k = 0; k < pictures; ++k) {
    if (k % 4 == 0) {  // a syllable, or a pause between two
      loud = draw.maybe(0.3) ? 0 : 0.2 + 0.4 * (draw.uniform() + 1);
      width = draw.uniform();
    }
    if (k % 12 == 0) gaze = draw.one_of({-1.0, 0.0, 1.0});
    const double before = k > 0 ? poses[k - 1].opening : 0;
    FacePose& pose = poses[k];
    pose.opening = before + 0.6 * (loud - before);
    pose.width = width * std::min(1.0, 3 * pose.opening);
    pose.gaze = gaze;
    pose.low = low += 0.2 * (2.5 * loud - low);
    if (k >= blink) pose.lids = std::array{0.6, 1.0, 1.0, 0.5}[size_t(k - blink)];
    if (k == blink + 3) blink = k + 15 + int(draw.below(20));
  }
  return poses;
}

}  // namespace weft::pocket
