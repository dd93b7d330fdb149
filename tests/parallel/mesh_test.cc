// Layouts and the mesh: parsing, refusals, and the map between ranks and coordinates.
#include "parallel/mesh.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "parallel/sequence_map.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

Layout make(std::initializer_list<std::pair<Axis, int>> parts) {
  Layout layout;
  for (auto [axis, n] : parts) layout[axis] = n;
  return layout;
}

std::string layout_fault(const std::string& text, int ranks, const LayoutLimits& limits) {
  return error_of([&] { parse_layout(text, ranks, limits); }, ErrorKind::kUsage);
}

const LayoutLimits kWan{.heads = 12, .layers = 30, .tokens = 1560, .ffn = 8960};

TEST(Mesh, RankAndCoordinatesAreABijection) {
  const Mesh mesh(make({{Axis::kData, 2},
                        {Axis::kCfg, 2},
                        {Axis::kLayers, 3},
                        {Axis::kRing, 2},
                        {Axis::kUlysses, 2},
                        {Axis::kTensor, 2}}));
  std::set<std::array<int, kAxes>> seen;
  for (int rank = 0; rank < mesh.layout().ranks(); ++rank) {
    std::array<int, kAxes> c;
    for (int i = 0; i < kAxes; ++i) c[i] = mesh.at(static_cast<Axis>(i), rank);
    EXPECT_TRUE(seen.insert(c).second);
    EXPECT_EQ(mesh.rank_at(c), rank);
  }
  // Tensor ranks are neighbours; Ulysses varies fastest within the sequence.
  EXPECT_EQ(mesh.along({Axis::kTensor}, 0), (std::vector<int>{0, 1}));
  EXPECT_EQ(mesh.along({Axis::kUlysses}, 0), (std::vector<int>{0, 2}));
  EXPECT_EQ(mesh.along({Axis::kRing}, 0), (std::vector<int>{0, 4}));
  EXPECT_EQ(mesh.sequence_index(6), 3);
}

TEST(Layout, WholeFramesAllowNoRing) {
  const LayoutLimits limits{
      .heads = 12, .layers = 30, .tokens = 1560, .method = {SplitRule::kBlocks}};
  for (const char* ring : {"ring=2", "token_ring=2"})
    EXPECT_TRUE(contains(layout_fault(ring, 2, limits), "splits the frames of a block"));
  EXPECT_EQ(layout_fault("ulysses=2,layers=2", 4, limits), "");
}

TEST(Mesh, GroupsOfEveryAxisPartitionTheWorld) {
  const Mesh mesh(make({{Axis::kCfg, 2}, {Axis::kTokenRing, 3}, {Axis::kUlysses, 2}}));
  for (int axis = 0; axis < kAxes; ++axis) {
    std::map<int, int> times;
    for (int rank = 0; rank < 12; ++rank) {
      const std::vector<int> group = mesh.along({static_cast<Axis>(axis)}, rank);
      EXPECT_EQ(group.size(), mesh.layout().parts[axis]);
      EXPECT_EQ(std::count(group.begin(), group.end(), rank), 1);
      for (int member : group) {
        EXPECT_EQ(mesh.along({static_cast<Axis>(axis)}, member), group);
        ++times[member];
      }
    }
    for (auto [rank, n] : times) EXPECT_EQ(n, mesh.layout().parts[axis]) << rank;
  }
}

TEST(Layout, ParsesAndPrints) {
  const Layout layout = parse_layout("ulysses=3,cfg=2", 6, kWan);
  EXPECT_EQ(to_string(layout), "cfg=2,ulysses=3");
  EXPECT_EQ(parse_layout(to_string(layout), 6, kWan), layout);
  EXPECT_EQ(to_string(parse_layout("auto", 1, kWan)), "one rank");
  EXPECT_EQ(to_string(parse_layout("auto", 8, kWan)), "cfg=2,ulysses=4");
  LayoutLimits few = kWan;
  few.heads = 2;
  few.guided = false;
  EXPECT_EQ(to_string(parse_layout("auto", 8, few)), "ring=4,ulysses=2");
}

TEST(Layout, StagesHaveAllRanksHalfOfThemTwoOrOne) {
  const auto counts = [](const Layout& layout, int Layout::*stage) {
    std::vector<int> out;
    for (Layout one : with_stage_ranks(layout, stage)) {
      out.push_back(one.*stage);
      one.*stage = layout.*stage;
      EXPECT_EQ(one, layout);
    }
    return out;
  };
  using Counts = std::vector<int>;
  Layout layout;
  EXPECT_EQ(counts(layout, &Layout::text_ranks), Counts{0});
  layout[Axis::kUlysses] = 2;
  EXPECT_EQ(counts(layout, &Layout::vae_ranks), (Counts{0, 1}));
  layout[Axis::kData] = 2;  // two replicas of two
  EXPECT_EQ(counts(layout, &Layout::vae_ranks), (Counts{0, 1}));
  layout[Axis::kUlysses] = 3;
  EXPECT_EQ(counts(layout, &Layout::text_ranks), (Counts{0, 2, 1}));
  layout[Axis::kUlysses] = 8;
  EXPECT_EQ(counts(layout, &Layout::text_ranks), (Counts{0, 4, 2, 1}));
  layout.text_ranks = 3;
  layout.decode_rank = 1;
  EXPECT_EQ(counts(layout, &Layout::text_ranks), Counts{3});
  EXPECT_EQ(counts(layout, &Layout::vae_ranks), Counts{0});
}

TEST(Layout, RanksOfTheTextEncoderAndTheVaeArePartOfIt) {
  const Layout layout = parse_layout("ulysses=4,text_ranks=2,vae_ranks=4", 4, kWan);
  EXPECT_EQ(layout.text_ranks, 2);
  EXPECT_EQ(layout.vae_ranks, 4);
  EXPECT_EQ(layout.ranks(), 4);
  EXPECT_EQ(to_string(layout), "ulysses=4,text_ranks=2,vae_ranks=4");
  EXPECT_EQ(parse_layout(to_string(layout), 4, kWan), layout);
  EXPECT_EQ(to_string(parse_layout("auto,text_ranks=1", 8, kWan)), "cfg=2,ulysses=4,text_ranks=1");
  EXPECT_TRUE(std::ranges::is_permutation(parse_layouts("all", 4, kWan), legal_layouts(4, kWan)));
  EXPECT_EQ(parse_layouts("all", 4, kWan).front(), parse_layout("auto", 4, kWan));
  for (const Layout& one : parse_layouts("all,vae_ranks=3", 4, kWan)) EXPECT_EQ(one.vae_ranks, 3);
  EXPECT_EQ(parse_layouts("all,vae_ranks=3", 4, kWan).size(), legal_layouts(4, kWan).size());

  EXPECT_TRUE(contains(layout_fault("ulysses=4,text_ranks=5", 4, kWan),
                       "text_ranks is 5, legal: 1 to 4, the ranks of one result"));
  LayoutLimits two = kWan;
  two.requests = 2;
  EXPECT_TRUE(contains(layout_fault("data=2,ulysses=2,vae_ranks=3", 4, two),
                       "vae_ranks is 3, legal: 1 to 2"));
  EXPECT_EQ(parse_layout("ulysses=4", 4, kWan).decode_rank, -1);
  const Layout decoder = parse_layout("ulysses=4,decode_rank=0", 4, kWan);
  EXPECT_EQ(decoder.decode_rank, 0);
  EXPECT_EQ(to_string(decoder), "ulysses=4,decode_rank=0");
  EXPECT_TRUE(contains(layout_fault("data=2,ulysses=2,decode_rank=2", 4, two),
                       "decode_rank is 2, legal: 0 to 1, the ranks of one result"));
  EXPECT_TRUE(
      contains(layout_fault("ulysses=4,decode_rank=1,vae_ranks=2", 4, kWan),
               "vae_ranks is 2, but decode_rank gives the VAE to one rank; legal with it: 1"));
  EXPECT_TRUE(
      contains(layout_fault("ulysses=4,vae_ranks=0", 4, kWan), "'vae_ranks=0' is not legal"));
  LayoutLimits language = kWan;
  language.kv_heads = 4;
  language.decodes = true;
  EXPECT_TRUE(contains(layout_fault("tensor=2,text_ranks=1", 2, language),
                       "a language model has no such stage"));
  EXPECT_TRUE(contains(layout_fault("text_ranks=0", 1, kWan), "'text_ranks=0' is not legal"));
  EXPECT_TRUE(contains(layout_fault("auto,ring=2", 2, kWan), "ring beside auto"));
  EXPECT_TRUE(contains(layout_fault("auto,", 2, kWan), "'' is not legal"));
  EXPECT_TRUE(contains(layout_fault("all", 2, kWan), "weft plan alone"));
}

// Heads that share keys go to ranks in whole groups, and to several ranks where those are more than
// the groups.
TEST(Layout, GroupedHeadsBoundWhatIsSplitAgain) {
  LayoutLimits limits{.heads = 6, .layers = 1, .tokens = 100, .ffn = 64};
  EXPECT_EQ(parse_layout("tensor=3,ulysses=2", 6, limits)[Axis::kTensor], 3);
  limits.kv_heads = 2;
  EXPECT_TRUE(contains(layout_fault("tensor=3,ulysses=2", 6, limits),
                       "tensor=3 leaves a rank with 1 heads for ulysses=2"));
  EXPECT_EQ(parse_layout("tensor=2,ulysses=3", 6, limits)[Axis::kUlysses], 3);
  EXPECT_EQ(parse_layout("ulysses=6", 6, limits)[Axis::kUlysses], 6);
  limits.stored = {.head_size = 32, .head_block = 64};  // 3 heads of 32 columns are no whole block
  EXPECT_TRUE(contains(layout_fault("tensor=2", 2, limits), "cuts the heads at column 96"));
}

TEST(Layout, RefusesWithTheReasonAndTheLegalOnes) {
  LayoutLimits limits = kWan;
  limits.heads = 3;
  EXPECT_TRUE(contains(layout_fault("ulysses=4", 4, limits),
                       "ulysses * tensor is 4, but there are 3 heads"));
  EXPECT_TRUE(contains(layout_fault("ulysses=4", 4, limits), "cfg=2,ring=2"));
  EXPECT_TRUE(contains(layout_fault("ulysses=2", 4, kWan),
                       "the product of its axes is 2, there are 4 ranks"));
  EXPECT_TRUE(contains(layout_fault("rings=2", 2, kWan), "'rings=2' is not legal"));
  EXPECT_TRUE(contains(layout_fault("ring=2,ring=2", 4, kWan), "ring stands twice"));
  EXPECT_TRUE(contains(layout_fault("ring=0", 1, kWan), "'ring=0' is not legal"));
  EXPECT_TRUE(contains(layout_fault("ring=2x", 2, kWan), "'ring=2x' is not legal"));
  EXPECT_TRUE(contains(
      layout_fault("", 0 + 7, {.heads = 1, .layers = 1, .tokens = 1, .ffn = 1, .guided = false}),
      "no layout of 7 ranks"));
  EXPECT_TRUE(contains(layout_fault("ring=2,", 2, kWan), "'' is not legal"));
  limits.guided = false;
  EXPECT_TRUE(contains(layout_fault("cfg=2", 2, limits), "guidance is off"));
  EXPECT_TRUE(contains(layout_fault("ring=2,token_ring=2", 4, kWan), "two ways of one split"));
  EXPECT_TRUE(contains(layout_fault("data=2", 2, kWan), "data is 2, but there are 1 requests"));
}

// Clips have a meaning where a method gives it one, and no ring serves them.
TEST(Layout, ClipsNeedTheMethodAndNoRing) {
  EXPECT_TRUE(contains(layout_fault("clip=2", 2, kWan), "clip=2 where attention sees all frames"));
  for (const Layout& layout : legal_layouts(8, kWan)) EXPECT_EQ(layout[Axis::kClip], 1);

  LayoutLimits limits = kWan;
  limits.method = {SplitRule::kClips, 7};
  limits.tokens = 7 * 3;
  EXPECT_EQ(to_string(parse_layout("cfg=2,clip=3", 6, limits)), "cfg=2,clip=3");
  EXPECT_EQ(to_string(parse_layout("auto", 8, limits)), "cfg=2,clip=4");
  EXPECT_TRUE(
      contains(layout_fault("clip=8", 8, limits), "clip is 8, but there are 7 latent frames"));
  EXPECT_TRUE(contains(layout_fault("clip=2,ring=2", 4, limits), "ring=2 under --method clips"));
  EXPECT_TRUE(
      contains(layout_fault("token_ring=2", 2, limits), "token_ring=2 under --method clips"));
  // A clip of one frame has three tokens.
  EXPECT_TRUE(
      contains(layout_fault("clip=7,ulysses=4", 28, limits), "the shortest clip has 3 tokens"));
  EXPECT_EQ(to_string(parse_layout("clip=7,ulysses=3", 21, limits)), "clip=7,ulysses=3");
  EXPECT_EQ(Mesh(parse_layout("clip=7,ulysses=3", 21, limits)).sequence_index(10), 10);
}

// An axis that splits tokens has no place beside one that splits them differently.
void expect_refused_beside(const std::string& reason, const LayoutLimits& limits,
                           const std::vector<std::string>& others) {
  for (const std::string& other : others)
    EXPECT_TRUE(contains(layout_fault(other + "=2", 2, limits), other + reason));
}

// Patches have a meaning where attention is displaced, and nothing else splits their tokens.
TEST(Layout, PatchesNeedDisplacedAttentionAndNoOtherSplitOfTokens) {
  EXPECT_TRUE(
      contains(layout_fault("patch=2", 2, kWan), "there are no displaced patches; legal: 1"));
  for (const Layout& layout : legal_layouts(8, kWan)) EXPECT_EQ(layout[Axis::kPatch], 1);

  LayoutLimits limits = kWan;
  limits.method = {SplitRule::kPatches, 3};
  EXPECT_EQ(to_string(parse_layout("cfg=2,patch=3,tensor=2", 12, limits)),
            "cfg=2,patch=3,tensor=2");
  EXPECT_TRUE(contains(layout_fault("patch=4", 4, limits), "patch is 4, but there are 3 patches"));
  expect_refused_beside("=2 beside displaced patches", limits, {"ulysses", "ring", "token_ring"});
}

// Steps have ranks of their own in a stream alone.
TEST(Layout, StepsNeedAStreamAndNoSplitOfItsKeys) {
  EXPECT_TRUE(contains(layout_fault("step=2", 2, kWan), "need the blocks of a stream; legal: 1"));
  for (const Layout& layout : legal_layouts(8, kWan)) EXPECT_EQ(layout[Axis::kStep], 1);

  LayoutLimits limits = kWan;
  limits.method = {SplitRule::kStream, 3};
  EXPECT_EQ(to_string(parse_layout("step=3,layers=2,tensor=2", 12, limits)),
            "step=3,layers=2,tensor=2");
  EXPECT_TRUE(contains(layout_fault("step=4", 4, limits), "step is 4, but there are 3 steps"));
  EXPECT_EQ(to_string(parse_layout("step=3,tensor=2,ulysses=2", 12, limits)),
            "step=3,ulysses=2,tensor=2");
  EXPECT_TRUE(contains(layout_fault("layers=2,ulysses=2", 4, limits), "ulysses=2 beside layers=2"));
  expect_refused_beside("=2 splits the keys of a stream's blocks", limits, {"ring", "token_ring"});
  EXPECT_TRUE(contains(layout_fault("ring=2", 2, limits),
                       "legal: 1 (step, layers, tensor and ulysses split a stream)"));
  limits.whole_width = true;
  EXPECT_TRUE(contains(layout_fault("ring=2", 2, limits),
                       "legal: 1 (step, layers and ulysses split a stream)"));
}

TEST(Layout, LayersNeedAModelThatEmbedsAtItsEndWhereACacheAsks) {
  LayoutLimits limits = kWan;
  EXPECT_EQ(layout_fault("layers=2", 2, limits), "");
  limits.whole_depth = true;
  EXPECT_TRUE(contains(layout_fault("layers=2", 2, limits), "layers=2 splits the blocks"));
  for (const Layout& layout : legal_layouts(4, limits)) EXPECT_EQ(layout[Axis::kLayers], 1);
}

TEST(SequenceMap, ClipsAreWholeFrames) {
  for (const int64_t size : {1, 5})
    for (const int frames : {1, 4, 7})
      for (int clips = 1; clips <= frames; ++clips)
        for (int ulysses = 1; ulysses <= size; ++ulysses) {
          const SequenceMap map = SequenceMap::clips({frames * size, frames}, clips, ulysses);
          ASSERT_EQ(map.size(), clips * ulysses);
          EXPECT_EQ(map.joined().ranges, TokenRanges::all(frames * size).ranges);
          const SequenceMap blocks = map.blocks(ulysses);
          for (int clip = 0; clip < clips; ++clip) {
            const Range expected = partition(frames, clips, clip);
            EXPECT_EQ(blocks[clip].ranges[0].begin, expected.begin * size);
            EXPECT_EQ(blocks[clip].ranges[0].end, expected.end * size);
          }
        }
}

TEST(Layout, LegalOnesAreAllAndOnlyThose) {
  const LayoutLimits limits{.heads = 3, .layers = 2, .tokens = 100, .ffn = 64};
  const std::vector<Layout> legal = legal_layouts(4, limits);
  std::set<std::string> names;
  for (const Layout& layout : legal) {
    EXPECT_EQ(layout.ranks(), 4);
    EXPECT_EQ(refuse(layout, limits), "");
    EXPECT_TRUE(names.insert(to_string(layout)).second);
  }
  EXPECT_TRUE(names.count("cfg=2,layers=2"));
  EXPECT_TRUE(names.count("token_ring=4"));
  EXPECT_FALSE(names.count("layers=4"));
  EXPECT_FALSE(names.count("ulysses=2,tensor=2"));  // 3 heads over 2: a rank with one head
  EXPECT_FALSE(names.count("data=4"));
}

}  // namespace
}  // namespace weft::test
