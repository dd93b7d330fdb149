// Tests the keys that a segment of a video leaves for the segment before it: positions, versions,
// frames, branches and bytes, alone and inside Ulysses.
#include "parallel/methods/segment_context.h"

#include "parallel/methods/mixer_factory.h"
#include "tests/parallel/byte_formulas.h"
#include "tests/parallel/methods.h"

namespace weft::test {
namespace {

// P = 3, C = 2: a pass has 5 frames of 6 tokens and keeps frames 2 and 3, the first of its own.
constexpr int64_t kFrames = 5, kBlock = 3, kContext = 2, kRow = 2, kColumn = 3, kFrame = 6;
constexpr int64_t kTokens = kFrames * kFrame, kHeads = 4, kHead = 12;
constexpr Range kKept{kContext * kFrame, 2 * kContext* kFrame};

struct Qkv {
  Tensor q, k, v;
  explicit Qkv(uint64_t seed, DType dtype = DType::kF32)
      : q(random_values(dtype, {kTokens, kHeads, kHead}, 3 * seed, 1)),
        k(random_values(dtype, {kTokens, kHeads, kHead}, 3 * seed + 1, 1)),
        v(random_values(dtype, {kTokens, kHeads, kHead}, 3 * seed + 2, 1)) {}
};

Rope positions(int64_t frames, int64_t first) {
  return make_rope({frames, kRow, kColumn}, {first, 0, 0}, kHead);
}

// The passes of one rank. It holds the tokens `own`.
class Passes {
 public:
  explicit Passes(SegmentContext& state, std::unique_ptr<TokenMixer> mixer = nullptr,
                  const Range& own = {0, kTokens}, int64_t shift = 0)
      : state_(state),
        mixer_(mixer ? std::move(mixer) : std::make_unique<SegmentContextMixer>(state)),
        own_(own),
        rope_(positions(kFrames, shift)),
        right_(positions(kContext, shift + kFrames)) {}

  Tensor operator()(const Qkv& x, std::optional<int> reads, std::optional<int> keeps,
                    int branch = 0) {
    Stream stream = Stream::cpu(1);
    const Pass pass{.branch = branch};
    Context context{stream, arena, *mixer_, reducer_, halo_, pass, {{own_}, kTokens}};
    const auto part = [&](const Tensor& whole) {
      const TensorView rows = whole.view().slice(0, own_.begin, own_.size());
      Tensor copied(rows.dtype, rows.shape());
      copy(stream, rows, copied);
      return copied;
    };
    const Tensor q = part(x.q), k = part(x.k), v = part(x.v);
    Tensor out(q.view().dtype, q.view().shape());
    state_.begin({.reads = reads, .keeps = keeps, .rope = &right_});
    mixer_->begin(pass);
    mixer_->attend(context,
                   {.layer = 3, .q = q, .k = k, .v = v, .out = out, .rope = &rope_, .scale = 0.3f});
    return out;
  }

  Arena arena{size_t{1} << 28};

 private:
  SegmentContext& state_;
  std::unique_ptr<TokenMixer> mixer_;
  Range own_;
  Rope rope_, right_;
  IdentityReducer reducer_;
  IdentityHalo halo_;
};

SegmentContext state(const Range& kept = kKept) { return SegmentContext({2, 4, 5}, {0, 1}, kept); }

// One attention over the explicit window of P + 2 C frames, whose last C frames are those of the
// segment after it.
Tensor explicit_window(const Qkv& own, const Qkv& behind) {
  Stream stream = Stream::cpu(1);
  const int64_t all = kTokens + kKept.size();
  Tensor k(DType::kF32, {all, kHeads, kHead}), v(DType::kF32, {all, kHeads, kHead}),
      q(DType::kF32, {kTokens, kHeads, kHead}), out(DType::kF32, {kTokens, kHeads, kHead});
  const auto join = [&](const Tensor& a, const Tensor& b, const Tensor& to) {
    copy(stream, a, to.view().slice(0, 0, kTokens));
    copy(stream, b.view().slice(0, kKept.begin, kKept.size()),
         to.view().slice(0, kTokens, kKept.size()));
  };
  join(own.k, behind.k, k);
  join(own.v, behind.v, v);
  const Rope rope = positions(kFrames + kContext, 0);
  apply_rope(stream, own.q, rope, 0, q);
  apply_rope(stream, k, rope, 0, k);
  const KVSegment keys{.k = k, .v = v};
  attention(stream, {.q = q, .segments = {&keys, 1}, .scale = 0.3f, .out = out});
  return out;
}

// Laws 10 to 12.
TEST(SegmentContext, IsOneAttentionOverTheExplicitWindow) {
  const Qkv behind(1), own(2);
  SegmentContext kept = state();
  Passes passes(kept);
  passes(behind, {}, 4);
  EXPECT_LE(relative_l2(passes(own, 4, 5), explicit_window(own, behind)), 1e-6);
  // Keys of other frames would be seen.
  SegmentContext prefix = state({0, kKept.size()});
  Passes wrong(prefix);
  wrong(behind, {}, 4);
  EXPECT_GT(relative_l2(wrong(own, 4, 5), explicit_window(own, behind)), 1e-2);
}

TEST(SegmentContext, NothingKeptIsPlainAttention) {
  const Qkv own(2);
  SegmentContext kept = state(), none = state();
  SegmentContext& unused = none;
  Passes passes(kept), plain(unused, std::make_unique<FullMixer>());
  EXPECT_TRUE(same_bits(passes(own, {}, 1), plain(own, {}, {})));
  EXPECT_TRUE(same_bits(passes(own, {}, {}), plain(own, {}, {})));
}

TEST(SegmentContext, AShiftOfAllPositionsChangesNothing) {
  const Qkv behind(1), own(2);
  SegmentContext here = state(), there = state();
  Passes at_zero(here), far(there, nullptr, {0, kTokens}, 40);
  at_zero(behind, {}, 0);
  far(behind, {}, 0);
  EXPECT_LE(relative_l2(far(own, 0, 1), at_zero(own, 0, 1)), 1e-5);
}

// A pass reads the keys of the segment after and leaves its own in their place.
TEST(SegmentContext, APassLeavesItsKeysInThePlaceOfThoseThatItReads) {
  const Qkv a(1), b(2), c(3);
  SegmentContext kept = state();
  Passes passes(kept);
  passes(a, {}, 0);
  const Tensor second = passes(b, 0, 1), third = passes(c, 1, 2);
  EXPECT_LE(relative_l2(second, explicit_window(b, a)), 1e-6);
  EXPECT_LE(relative_l2(third, explicit_window(c, b)), 1e-6);
  EXPECT_EQ(kept.bytes(), segment_context_cache_bytes(2, 2, kKept.size(), {kHeads, kHeads, kHead}));
}

TEST(SegmentContext, BranchesDoNotMix) {
  const Qkv a(1), b(2), own(3);
  SegmentContext kept = state();
  Passes passes(kept);
  passes(a, {}, 0, 0);
  passes(b, {}, 0, 1);
  EXPECT_LE(relative_l2(passes(own, 0, {}, 0), explicit_window(own, a)), 1e-6);
  EXPECT_LE(relative_l2(passes(own, 0, {}, 1), explicit_window(own, b)), 1e-6);
}

TEST(SegmentContext, TakesTheMemoryOfADryRun) {
  const Qkv own(2);
  SegmentContext kept = state();
  Passes passes(kept);
  const size_t before = tensor_bytes_live();
  passes(own, {}, 0);
  EXPECT_EQ(passes.arena.high_water(), 0u);
  passes(own, 0, 1);
  const size_t held = tensor_bytes_live() - before;
  DryRun dry;
  SegmentContext dry_kept = state();
  SegmentContextMixer mixer(dry_kept);
  const Tensor rows = dry.tensor(DType::kF32, {kTokens, kHeads, kHead});
  const Rope rope = on_device(dry.stream(), positions(kFrames, 0)),
             right = on_device(dry.stream(), positions(kContext, kFrames));
  SerialSeams seams;
  Context context{
      dry.stream(), dry.arena(), mixer, seams.reducer, seams.halo, {}, {{{0, kTokens}}, kTokens}};
  const Footprint footprint = dry.measure([&] {
    for (int version = 0; version < 2; ++version) {
      dry_kept.begin({version > 0 ? std::optional(0) : std::nullopt, version, &right});
      mixer.begin({});
      mixer.attend(context,
                   {.layer = 3, .q = rows, .k = rows, .v = rows, .out = rows, .rope = &rope});
    }
  });
  EXPECT_GT(passes.arena.high_water(), 0u);
  EXPECT_EQ(footprint.arena, passes.arena.high_water());
  EXPECT_EQ(footprint.held, held);
}

// Law 9.
TEST(SegmentContextDeathTest, AnotherVersionIsRefused) {
  const Qkv own(2);
  SegmentContext kept = state();
  Passes passes(kept);
  EXPECT_DEATH(passes(own, 0, 1), "is asked for version 0 and holds none");
  passes(own, {}, 3);
  EXPECT_DEATH(passes(own, 2, 4), "is asked for version 2 and holds 3");
  EXPECT_DEATH(passes(own, {}, 3), "is written in version 3 after 3");
  EXPECT_DEATH(passes(own, 3, {}, 1), "branch 1 layer 3 is asked for version 3 and holds none");
}

// Every rank of a Ulysses group keeps the keys of its heads.
TEST(SegmentContext, GivesTheSameBitsInsideUlysses) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (int ranks = 2; ranks <= 4; ++ranks) {
      const Qkv a(1, dtype), b(2, dtype);
      SegmentContext alone = state();
      Passes one(alone);
      one(a, {}, 0);
      const Tensor expected = one(b, 0, 1);
      Layout layout;
      layout[Axis::kUlysses] = ranks;
      run_ranks(ranks, [&](Communicator& world) {
        SegmentContext kept = state();
        const SequenceMap map = SequenceMap::contiguous(kTokens, ranks);
        const Range own = map[world.rank()].ranges[0];
        Passes passes(
            kept,
            make_mixer({.mesh = Mesh(layout),
                        .rank = world.rank(),
                        .tokens = map,
                        .inner = [&] { return std::make_unique<SegmentContextMixer>(kept); }},
                       [&](const std::vector<int>& group, int number) {
                         return world.group(group, 7 + number);
                       }),
            own);
        passes(a, {}, 0);
        EXPECT_TRUE(same_bits(passes(b, 0, 1), expected.view().slice(0, own.begin, own.size())));
        const HeadPart heads = partition_heads(kHeads, kHeads, ranks, world.rank());
        EXPECT_EQ(kept.bytes(), segment_context_cache_bytes(
                                    2, 2, kKept.size(), {kHeads, heads.kv.size(), kHead, dtype}));
      });
    }
}

}  // namespace
}  // namespace weft::test
