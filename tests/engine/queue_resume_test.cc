// A queue that goes on from what was kept of a turn makes the bits of one that never stopped: from
// every turn, under every layout, and under another one.
#include <gtest/gtest.h>

#include "tests/engine/queue_reference.h"

namespace weft::test {
namespace {

struct Ranks {
  Layout layout;
  int decoder = 0;
};

Ranks ranks(std::initializer_list<std::pair<Axis, int>> axes, int decoder = 0) {
  Ranks made{.layout = {}, .decoder = decoder};
  for (const auto& [axis, parts] : axes) made.layout[axis] = parts;
  return made;
}

std::vector<Ranks> all_ranks() {
  return {ranks({}),
          ranks({{Axis::kLayers, 2}}, 1),
          ranks({{Axis::kLayers, 3}}),
          ranks({{Axis::kUlysses, 2}}),
          ranks({{Axis::kUlysses, 3}}, 2),
          ranks({{Axis::kCfg, 2}}, 1),
          ranks({{Axis::kCfg, 2}, {Axis::kLayers, 2}}, 3),
          ranks({{Axis::kLayers, 2}, {Axis::kUlysses, 2}}, 1)};
}

Snapshot again(const Snapshot& kept) {
  Snapshot out;
  out.latent = copy_of(kept.latent);
  for (const auto& [name, tensor] : kept.history) out.history.emplace_back(name, copy_of(tensor));
  return out;
}

// Returns what is kept before every turn but the first, while the whole video is made.
std::map<int, Snapshot> kept_turns(const QueueNumbers& n, const Ranks& on, const Video& expected) {
  std::map<int, Snapshot> kept;
  const auto keep = [&](int turn, Snapshot snapshot) { kept[turn] = std::move(snapshot); };
  EXPECT_TRUE(same(run_queue(n, on.layout, {.kept = keep, .decoder = on.decoder}), expected))
      << to_string(on.layout);
  EXPECT_EQ(kept.size(), static_cast<size_t>(n.steps + n.segments - 1));
  return kept;
}

bool goes_on(const QueueNumbers& n, const Ranks& on, int turn, const Snapshot& kept,
             const Video& expected) {
  const Video rest =
      run_queue(n, on.layout,
                {.first_turn = turn, .start = [&] { return again(kept); }, .decoder = on.decoder});
  const int decoded = std::max(0, turn - n.steps);
  if (std::ssize(rest.latents) != n.segments - decoded) return false;
  for (const auto& [segment, latent] : rest.latents)
    if (!same_bits(latent, expected.latents.at(segment))) return false;
  return true;
}

TEST(QueueResume, EveryTurnGivesTheSameBits) {
  for (const QueueNumbers& n :
       {QueueNumbers{.segments = 5, .steps = 4}, QueueNumbers{.segments = 2, .steps = 4},
        QueueNumbers{.segments = 4, .steps = 5, .experts = 2, .prompts = {0, 1, 1, 2}},
        QueueNumbers{.frames = {2, 0}, .segments = 3, .steps = 3},
        QueueNumbers{.segments = 3, .steps = 3, .solver = SolverKind::kDpmppDiffusers}}) {
    const Video expected = closed_form(n);
    for (const Ranks& on : all_ranks())
      for (const auto& [turn, kept] : kept_turns(n, on, expected))
        EXPECT_TRUE(goes_on(n, on, turn, kept, expected))
            << to_string(on.layout) << " turn " << turn;
  }
}

TEST(QueueResume, AnotherLayoutGivesTheSameBits) {
  const QueueNumbers n{.segments = 4, .steps = 4};
  const Video expected = closed_form(n);
  const std::vector<Ranks> layouts = all_ranks();
  for (size_t i = 0; i < layouts.size(); ++i) {
    const auto kept = kept_turns(n, layouts[i], expected);
    const Ranks& other = layouts[(i + 3) % layouts.size()];
    for (const auto& [turn, snapshot] : kept)
      EXPECT_TRUE(goes_on(n, other, turn, snapshot, expected))
          << to_string(layouts[i].layout) << " then " << to_string(other.layout) << " turn "
          << turn;
  }
}

TEST(QueueResume, DelaysChangeNoBit) {
  const QueueNumbers n{.segments = 4, .steps = 4};
  const Video expected = closed_form(n);
  for (const Ranks& on : all_ranks())
    for (uint64_t seed = 1; seed <= 2 && on.layout.ranks() > 1; ++seed)
      EXPECT_TRUE(same(
          run_queue(n, on.layout,
                    {.kept = [](int, const Snapshot&) {},
                     .local = {.rendezvous = seed == 1, .delay_seed = seed, .max_delay_us = 50},
                     .decoder = on.decoder}),
          expected))
          << to_string(on.layout) << " seed " << seed;
}

// The kept tensors do not depend on the layout, and every part of it matters.
TEST(QueueResume, KeepsTheSameUnderEveryLayoutAndNothingTooMuch) {
  const QueueNumbers n{.segments = 6, .steps = 6};
  const Video expected = closed_form(n);
  const auto alone = kept_turns(n, ranks({}), expected);
  for (const Ranks& on : all_ranks())
    for (const auto& [turn, kept] : kept_turns(n, on, expected)) {
      const Snapshot& one = alone.at(turn);
      EXPECT_TRUE(same_bits(kept.latent, one.latent)) << to_string(on.layout) << " turn " << turn;
      ASSERT_EQ(kept.history.size(), one.history.size());
      for (size_t k = 0; k < one.history.size(); ++k)
        EXPECT_TRUE(same_bits(kept.history[k].second, one.history[k].second)) << turn;
    }
  const int turn = n.steps + 1;
  for (int64_t frame = 0; frame < alone.at(turn).latent.view()[1]; ++frame) {
    Snapshot changed = again(alone.at(turn));
    changed.latent.view().slice(1, frame, 1).as<float>()[0] += 1;
    EXPECT_FALSE(goes_on(n, ranks({}), turn, changed, expected)) << frame;
  }
  for (size_t k = 0; k < alone.at(turn).history.size(); ++k) {
    Snapshot changed = again(alone.at(turn));
    // The last step reads no history, so not that of the first segment.
    const int64_t frame = changed.history[k].second.view()[1] - 1;
    changed.history[k].second.view().slice(1, frame, 1).as<float>()[0] += 1;
    EXPECT_FALSE(goes_on(n, ranks({}), turn, changed, expected)) << changed.history[k].first;
  }
}

}  // namespace
}  // namespace weft::test
