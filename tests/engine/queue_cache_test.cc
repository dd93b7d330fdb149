// Tests the segment queue with a step cache, which skips steps of every segment: the result is that
// of a double loop under every layout, to the bit; and faults of careless caches change it.
#include "tests/engine/queue_reference.h"

namespace weft::test {
namespace {

const QueueNumbers kCached{.segments = 6, .steps = 8, .skipped = {1, 3, 4, 6}};

// Law 1 of the queue, with skipped steps: fewer segments than skipped steps, no context, as much
// context as a segment has frames, so that a rank may have no frames of a segment, two experts,
// prompts that change, and no guidance.
TEST(QueueCache, GivesTheBitsOfADoubleLoopUnderEveryLayout) {
  for (const QueueNumbers& n :
       {kCached, QueueNumbers{.segments = 7, .steps = 7, .skipped = {1, 2, 3, 4, 5}},
        QueueNumbers{.segments = 2, .steps = 7, .skipped = {2, 3, 4, 5}},
        QueueNumbers{.frames = {2, 2}, .segments = 5, .steps = 6, .skipped = {2, 4}},
        QueueNumbers{.frames = {2, 0}, .segments = 4, .steps = 5, .skipped = {1, 2}},
        QueueNumbers{.segments = 5, .steps = 8, .experts = 2, .skipped = {1, 2, 6}},
        QueueNumbers{.segments = 4, .steps = 6, .prompts = {0, 1, 1, 2}, .skipped = {2, 3}},
        QueueNumbers{.segments = 1, .steps = 6, .skipped = {2, 3}},
        QueueNumbers{.segments = 4, .steps = 6, .guidance = 1, .skipped = {1, 3, 4}}}) {
    const Video expected = closed_form(n);
    for (const Layout& layout : queue_layouts()) {
      if (layout[Axis::kCfg] == 2 && n.guidance == 1) continue;
      EXPECT_TRUE(same(run_queue(n, layout), expected))
          << to_string(layout) << " " << n.segments << " blocks, " << n.steps << " steps";
    }
  }
}

TEST(QueueCache, SkippedStepsChangeTheVideo) {
  QueueNumbers none = kCached;
  none.skipped.clear();
  EXPECT_FALSE(same(closed_form(kCached), closed_form(none)));
}

TEST(QueueCache, DelaysAndTheDecoderChangeNoBit) {
  const Video expected = closed_form(kCached);
  for (const Layout& layout : queue_layouts())
    for (uint64_t seed = 1; seed <= 6 && layout.ranks() > 1; ++seed)
      EXPECT_TRUE(
          same(run_queue(
                   kCached, layout,
                   {.local = {.rendezvous = seed % 2 == 1, .delay_seed = seed, .max_delay_us = 100},
                    .decoder = static_cast<int>(seed) % layout.ranks()}),
               expected))
          << to_string(layout) << " seed " << seed;
}

TEST(QueueCache, PlantedFaultsChangeTheVideo) {
  const Video expected = closed_form(kCached);
  const std::pair<const char*, Planted> faults[] = {
      {"all blocks share what was added", {.one_residual = true}},
      {"both branches do", {.branches_share = true}},
      {"keys of an earlier turn are not seen", {.no_old_keys = true}},
      {"what was added is kept once", {.oldest_residual = true}}};
  for (const auto& [name, planted] : faults)
    EXPECT_FALSE(same(closed_form(kCached, planted), expected)) << name;
}

// A run that pauses at every turn keeps what later turns reuse.
TEST(QueueCache, PausesBetweenTurnsChangeNoBit) {
  const Video expected = closed_form(kCached);
  for (const Layout& layout : {stages(1), stages(2), layout_of({{Axis::kUlysses, 2}})}) {
    int kept = 0;
    EXPECT_TRUE(
        same(run_queue(kCached, layout, {.kept = [&](int, Snapshot) { ++kept; }}), expected));
    EXPECT_EQ(kept, kCached.steps + kCached.segments - 1);
  }
}

// A skipped pass runs no transformer block, on any rank, and its neighbours attend to keys that are
// kept by segment: their bytes grow with the skipped steps, but not with the video.
TEST(QueueCache, KeepsKeysByBlockAndNotByTheLengthOfTheVideo) {
  const auto bytes = [](int segments, std::vector<int> skipped) {
    QueueNumbers n = kCached;
    n.segments = segments;
    n.skipped = std::move(skipped);
    size_t kept = 0;
    run_queue(n, {}, {.kept_keys = [&](const RankPlacement&, size_t held) { kept = held; }});
    return kept;
  };
  const size_t set = bytes(6, {});
  EXPECT_GT(set, 0u);
  EXPECT_EQ(bytes(6, {3, 4}), 4 * set);
  EXPECT_EQ(bytes(6, {1, 3, 4, 6}), (1 + 2 + 3 + 2) * set);
  EXPECT_EQ(bytes(12, {1, 3, 4, 6}), (1 + 2 + 3 + 2) * set);
}

}  // namespace
}  // namespace weft::test
