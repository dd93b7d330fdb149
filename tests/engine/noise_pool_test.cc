// Tests the laws of the noise of a video's segments (law 16), and plants faults that they find.
#include "engine/sampling/noise_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "tests/support/error_of.h"

namespace weft::test {
namespace {

using Frames = std::function<std::vector<int64_t>(int segment)>;
constexpr int kPoolBlocks = 60;  // segments

// The first law of the pool that the segments' frames break, or "".
std::string broken(const SegmentFrames& of, const Frames& frames) {
  const int64_t all = of.segment + of.context;
  std::vector<int64_t> pool(all), video;
  std::iota(pool.begin(), pool.end(), 0);
  for (int k = 0; k < kPoolBlocks; ++k) {
    const std::vector<int64_t> own = frames(k);
    if (std::ssize(own) != of.count(k)) return "size";
    if (static_cast<int64_t>(video.size()) != of.first(k)) return "first";
    if (k > 0) {
      std::vector<int64_t> window(video.end() - of.context, video.end());
      window.insert(window.end(), own.begin(), own.end());
      std::ranges::sort(window);
      if (window != pool) return "window";  // a permutation of the pool
    }
    if (k > 1) {
      const std::vector<int64_t> before = frames(k - 1);
      const auto common =
          std::ranges::count_if(own, [&](int64_t f) { return std::ranges::count(before, f) > 0; });
      if (common != of.segment - of.context) return "overlap";
    }
    video.insert(video.end(), own.begin(), own.end());
  }
  std::map<int64_t, int64_t> last;
  for (int64_t at = 0; at < std::ssize(video); ++at) {
    const auto found = last.find(video[at]);
    if (found != last.end()) {
      const int64_t distance = at - found->second;
      if (distance < of.context + 1) return "near";
      if (distance > 2 * of.segment + of.context - 1) return "far";
    }
    last[video[at]] = at;
  }
  return std::ssize(last) == all ? "" : "pool";
}

NoisePool pool(const SegmentFrames& frames, uint64_t seed = 7, NoiseMode mode = NoiseMode::kPool) {
  return {mode, Rng::kPortable, seed, {4, frames.first(kPoolBlocks), 6, 8}, frames};
}

constexpr SegmentFrames kAll[] = {{8, 8}, {10, 5}, {8, 4}, {8, 1}, {9, 6}, {3, 0}, {1, 1}, {1, 0}};

TEST(NoisePool, KeepsItsLaws) {
  for (const SegmentFrames& of : kAll)
    for (uint64_t seed : {1, 2, 3}) {
      const NoisePool made = pool(of, seed);
      EXPECT_EQ(broken(of, [&](int k) { return made.frames(k); }), "") << of.segment << of.context;
    }
}

// Without context, a careless slice takes "the last C frames" of the template for all of them, so
// that the pool doubles with every segment.
TEST(NoisePool, ATemplateThatDoublesBreaksALaw) {
  EXPECT_EQ(broken({3, 0},
                   [](int k) {
                     std::vector<int64_t> order{0, 1, 2};
                     for (int segment = 1; segment <= k; ++segment) order.resize(2 * order.size());
                     return order;
                   }),
            "size");
}

TEST(NoisePool, AnOrderThatForgetsTheContextBreaksALaw) {
  EXPECT_EQ(
      broken({4, 2},
             [](int k) {
               return k ? std::vector<int64_t>{0, 1, 2, 3} : std::vector<int64_t>{0, 1, 2, 3, 4, 5};
             }),
      "window");
}

Tensor filled(const NoisePool& noise, const SegmentFrames& of, int k) {
  Tensor out(DType::kF32, {4, of.count(k), 6, 8});
  noise.fill(k, out);
  return out;
}

// A frame of [4, n, 6, 8] as its values.
std::vector<float> frame(const TensorView& segment, int64_t f) {
  std::vector<float> values;
  for (int64_t c = 0; c < 4; ++c) {
    const float* from = segment.as<float>() + (c * segment[1] + f) * 48;
    values.insert(values.end(), from, from + 48);
  }
  return values;
}

TEST(NoisePool, FillsFramesOfTheFieldWhateverTheOrderOfCalls) {
  const SegmentFrames of{5, 3};
  const NoisePool forward = pool(of), backward = pool(of);
  const NoiseField field(Rng::kPortable, 7, {4, 8, 6, 8});
  Tensor whole(DType::kF32, {4, 8, 6, 8});
  field.fill(whole);
  std::set<std::vector<float>> distinct;
  std::map<int, Tensor> later;
  for (int k = 20; k >= 0; --k) later[k] = filled(backward, of, k);
  for (int k = 0; k <= 20; ++k) {
    const Tensor segment = filled(forward, of, k);
    for (int64_t f = 0; f < of.count(k); ++f) {
      EXPECT_EQ(frame(segment, f), frame(later[k], f));
      EXPECT_EQ(frame(segment, f), frame(whole, forward.frames(k)[f]));
      distinct.insert(frame(segment, f));
    }
  }
  EXPECT_EQ(distinct.size(), 8u);
  // The order follows from the seed.
  EXPECT_NE(pool(of, 7).frames(3), pool(of, 8).frames(3));
}

TEST(NoisePool, FirstBlockIsTheNoiseOfAnOrdinaryGeneration) {
  const SegmentFrames of{5, 3};
  Tensor whole(DType::kF32, {4, 8, 6, 8});
  NoiseField(Rng::kPortable, 7, {4, 8, 6, 8}).fill(whole);
  for (const NoiseMode mode : {NoiseMode::kPool, NoiseMode::kIid}) {
    const Tensor first = filled(pool(of, 7, mode), of, 0);
    for (int64_t f = 0; f < 8; ++f) EXPECT_EQ(frame(first, f), frame(whole, f));
  }
}

// Every segment alone is standard normal, in both modes: mean and variance within 4 sigma.
TEST(NoisePool, EveryBlockIsStandardNormal) {
  const SegmentFrames of{6, 2};
  for (const NoiseMode mode : {NoiseMode::kPool, NoiseMode::kIid})
    for (int k = 0; k < 20; ++k) {
      const Tensor segment = filled(pool(of, 5, mode), of, k);
      const auto n = static_cast<double>(segment.count());
      double sum = 0, squares = 0;
      for (int64_t i = 0; i < segment.count(); ++i) {
        sum += segment.as<float>()[i];
        squares += double{segment.as<float>()[i]} * segment.as<float>()[i];
      }
      EXPECT_LT(std::abs(sum / n), 4 / std::sqrt(n));
      EXPECT_LT(std::abs(squares / n - 1), 4 * std::sqrt(2 / n));
    }
}

TEST(NoisePool, IidFramesAreThoseOfTheVideoAndAllDiffer) {
  const SegmentFrames of{4, 2};
  const NoisePool noise = pool(of, 3, NoiseMode::kIid);
  std::vector<std::vector<float>> seen;
  int64_t expected = 0;
  for (int k = 0; k < 8; ++k) {
    for (int64_t f : noise.frames(k)) EXPECT_EQ(f, expected++);
    const Tensor segment = filled(noise, of, k);
    for (int64_t f = 0; f < of.count(k); ++f) seen.push_back(frame(segment, f));
  }
  for (size_t a = 0; a < seen.size(); ++a)
    for (size_t b = 0; b < a; ++b) {
      const double product =
          std::inner_product(seen[a].begin(), seen[a].end(), seen[b].begin(), 0.0);
      EXPECT_LT(std::abs(product) / 192, 4 / std::sqrt(192.0)) << a << " " << b;
    }
}

TEST(NoisePool, NamesAreListed) {
  EXPECT_EQ(noise_mode_from_name("iid"), NoiseMode::kIid);
  EXPECT_EQ(error_of([] { noise_mode_from_name("fixed"); }),
            "noise 'fixed' is not known; legal: pool, iid");
}

}  // namespace
}  // namespace weft::test
