// Tests the factory: the mixer of every layout gives one rank's result and sends the bytes stated.
#include "parallel/methods/mixer_factory.h"

#include <map>
#include <sstream>

#include "parallel/bootstrap/flight_recorder.h"
#include "parallel/methods/ring.h"
#include "tests/parallel/byte_formulas.h"
#include "tests/parallel/methods.h"

namespace weft::test {
namespace {

MixerDescription describe_rings(const Layout& layout, int rank, const AttentionCase& c,
                                RingBalance balance) {
  const int rings = layout.blocks();
  const SequenceMap map =
      balance == RingBalance::kZigzag
          ? SequenceMap::zigzag(c.tokens(), rings, layout[Axis::kUlysses])
          : SequenceMap::contiguous(c.grid_tokens(), layout.sequence()).with_beside(c.beside);
  return {.mesh = Mesh(layout), .rank = rank, .tokens = map, .balance = balance};
}

void expect_one_ranks_result(const Layout& layout, const AttentionCase& c, RingBalance balance) {
  const SequenceRun run(c);
  const Tensor whole = run.whole(), exact = run.whole_f32();
  const auto make = [&](Communicator& world) {
    return make_mixer(
        describe_rings(layout, world.rank(), c, balance),
        [&](const std::vector<int>& ranks, int number) { return world.group(ranks, 7 + number); });
  };
  const Tensor out = run.run(
      layout.ranks(), describe_rings(layout, 0, c, balance).tokens, make, {.rendezvous = true},
      [&](Communicator& world) {
        EXPECT_EQ(
            world.counters().total_sent().bytes,
            mixer_sent_bytes(describe_rings(layout, world.rank(), c, balance), c.shape(), c.mask))
            << to_string(layout);
      });
  expect_method_equal(out, whole, exact, layout.ranks());
}

std::vector<Layout> sequence_layouts(int ranks, const AttentionCase& c) {
  const LayoutLimits limits{
      .heads = c.heads, .layers = 1, .tokens = c.grid_tokens(), .ffn = 1, .guided = false};
  std::vector<Layout> layouts;
  for (const Layout& layout : legal_layouts(ranks, limits))
    if (layout.sequence() == ranks) layouts.push_back(layout);
  return layouts;
}

TEST(MixerFactory, EveryLayoutGivesOneRanksResultWithTheStatedBytes) {
  int layouts = 0;
  for (int64_t replicated : {0, 5})
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      const AttentionCase c{.heads = 4, .kv_heads = 2, .dtype = dtype, .replicated = replicated};
      for (int ranks = 1; ranks <= 6; ++ranks)
        for (const Layout& layout : sequence_layouts(ranks, c)) {
          ++layouts;
          expect_one_ranks_result(layout, c, RingBalance::kContiguous);
        }
    }
  EXPECT_GE(layouts, 4 * 15);
}

// Some ranks have none of 3 tokens beside the grid.
TEST(MixerFactory, TokensBesideTheGridAreSplitToo) {
  for (int64_t beside : {3, 17})
    for (int64_t replicated : {0, 5}) {
      const AttentionCase c{.heads = 4, .kv_heads = 2, .replicated = replicated, .beside = beside};
      for (int ranks = 1; ranks <= 6; ++ranks)
        for (const Layout& layout : sequence_layouts(ranks, c))
          expect_one_ranks_result(layout, c, RingBalance::kContiguous);
    }
}

TEST(MixerFactory, EveryBalanceOfACausalRing) {
  const AttentionCase c{.heads = 4, .kv_heads = 2, .mask = Mask::kCausal};
  for (int ranks = 2; ranks <= 6; ++ranks)
    for (const Layout& layout : sequence_layouts(ranks, c))
      for (const RingBalance balance :
           {RingBalance::kContiguous, RingBalance::kZigzag, RingBalance::kLightSeq}) {
        const bool ulysses_alone = layout[Axis::kUlysses] == ranks;
        const bool ranges = balance == RingBalance::kZigzag;  // Ulysses alone: one range
        if (ulysses_alone && ranges) continue;
        expect_one_ranks_result(layout, c, balance);
      }
}

// Along the other axes nothing of the attention is split.
TEST(MixerFactory, ALayoutThatSplitsNoTokensTakesNothing) {
  const AttentionCase c;
  Layout layout;
  layout[Axis::kTensor] = 2;
  layout[Axis::kLayers] = 2;
  for (int rank = 0; rank < 4; ++rank) {
    const MixerDescription description = describe_rings(layout, rank, c, RingBalance::kContiguous);
    EXPECT_EQ(mixer_sent_bytes(description, c.shape()), 0);
    const auto no_group = [](const std::vector<int>&, int) -> Communicator {
      throw Error(ErrorKind::kInternal, "a full mixer needs no group");
    };
    EXPECT_NE(dynamic_cast<FullMixer*>(make_mixer(description, no_group).get()), nullptr);
  }
}

TEST(TokenMixerDeathTest, AnAttendNeedsABegin) {
  const AttentionCase c{.heads = 2, .kv_heads = 2};
  const SequenceRun run(c);
  const SequenceMap map = SequenceMap::contiguous(c.tokens(), 1);
  const Tensor out(c.dtype, {run.rows(), c.heads, c.head_dim});
  run_ranks(1, [&](Communicator& world) {
    RingMixer mixer(world.group({0}, 1), map);
    EXPECT_DEATH(run.attend(mixer, map[0], out), "an attend of layer 3 before begin");
    mixer.begin({});
    run.attend(mixer, map[0], out);
    mixer.finish();
    EXPECT_DEATH(run.attend(mixer, map[0], out), "an attend of layer 3 before begin");
  });
}

// Two attends of one layer in one forward (refiners) have different tags, and the next forward's
// messages are numbered anew. The recorder lists every message's tag.
TEST(TokenMixer, BeginNumbersTheMessagesOfAForward) {
  const AttentionCase c{.heads = 4, .kv_heads = 4, .replicated = 2};
  const SequenceRun run(c);
  for (const char* text : {"ring=2", "token_ring=2", "ulysses=2", "ulysses=2,ring=2"}) {
    const Layout layout = parse_layout(text, text == std::string("ulysses=2,ring=2") ? 4 : 2, {});
    run_ranks(layout.ranks(), [&](Communicator& world) {
      const MixerDescription description =
          describe_rings(layout, world.rank(), c, RingBalance::kContiguous);
      const auto mixer = make_mixer(description, [&](const std::vector<int>& ranks, int number) {
        return world.group(ranks, 1 + number);
      });
      const Tensor out(c.dtype, {run.rows(), c.heads, c.head_dim});
      for (int step : {1, 2}) {
        mixer->begin({.step = step});
        for (int attend = 0; attend < 2; ++attend)
          run.attend(*mixer, description.tokens[world.rank()], out);
      }
      mixer->finish();
      std::map<std::string, int> seen;  // direction, peer and tag
      std::istringstream lines(world.recorder().dump());
      for (std::string line; std::getline(lines, line);) {
        const size_t begin = line.find("\"op\""), end = line.find(",\"bytes\"");
        ++seen[line.substr(begin, end - begin)];
      }
      for (const auto& [message, times] : seen) EXPECT_EQ(times, 1) << text << ": " << message;
      EXPECT_GE(seen.size(), 8u);
      EXPECT_TRUE(std::any_of(seen.begin(), seen.end(), [](const auto& entry) {
        return entry.first.find("step 2 layer 3 hop 0") != std::string::npos;
      })) << seen.begin()->first;
    });
  }
}

}  // namespace
}  // namespace weft::test
