#include "engine/sampling/noise_pool.h"

#include <algorithm>
#include <numeric>

#include "io/nearest.h"
#include "kernels/philox.h"

namespace weft {
namespace {

constexpr std::array<std::string_view, static_cast<size_t>(NoiseMode::kCount)> kNoiseNames = {
    "pool", "iid"};

// A random order of 0 ... count - 1 (Fisher & Yates), which depends on the seed and on the segment.
std::vector<int64_t> shuffled(int64_t count, uint64_t seed, int segment) {
  const PhiloxKey key = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  std::vector<int64_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  for (int64_t i = count - 1; i > 0; --i) {
    const PhiloxCounter words = philox4x32_10(
        {static_cast<uint32_t>(i), static_cast<uint32_t>(segment), kStreamOrder, 0}, key);
    std::swap(order[i], order[words[0] * static_cast<uint64_t>(i + 1) >> 32]);
  }
  return order;
}

}  // namespace

std::string_view to_string(NoiseMode mode) { return kNoiseNames[static_cast<size_t>(mode)]; }

NoiseMode noise_mode_from_name(std::string_view name) {
  return value_named<NoiseMode>(kNoiseNames, name, "noise");
}

NoisePool::NoisePool(NoiseMode mode, Rng rng, uint64_t seed, std::array<int64_t, 4> shape,
                     const SegmentFrames& frames)
    : mode_(mode),
      seed_(seed),
      frames_(frames),
      field_(
          rng, seed,
          {shape[0], mode == NoiseMode::kPool ? frames.count(0) : shape[1], shape[2], shape[3]}) {
  CHECK(frames.context >= 0 && frames.context <= frames.segment && frames.segment > 0, "frames",
        frames.segment, frames.context);
}

std::vector<int64_t> NoisePool::frames(int k) const {
  std::vector<int64_t> order(frames_.count(0));
  std::iota(order.begin(), order.end(), 0);
  if (mode_ == NoiseMode::kIid) {
    order.resize(frames_.count(k));
    for (int64_t& frame : order) frame += frames_.first(k);
    return order;
  }
  for (int segment = 1; segment <= k; ++segment) {
    const std::vector<int64_t> before = order;
    const std::vector<int64_t> drawn = shuffled(frames_.segment, seed_, segment);
    std::copy(before.end() - frames_.context, before.end(), order.begin());
    for (int64_t f = 0; f < frames_.segment; ++f) order[frames_.context + f] = before[drawn[f]];
  }
  if (k > 0) order.erase(order.begin(), order.begin() + frames_.context);
  return order;
}

void NoisePool::fill(int k, const TensorView& out) const {
  const std::vector<int64_t> from = frames(k);
  CHECK(out.rank == 4 && out[1] == static_cast<int64_t>(from.size()), out.to_string_shape());
  for (size_t f = 0; f < from.size(); ++f)
    field_.fill(out.slice(1, static_cast<int64_t>(f), 1), from[f]);
}

}  // namespace weft
