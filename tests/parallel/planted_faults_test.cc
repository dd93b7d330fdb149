// Faults of other engines, planted in displaced patches and PipeFusion: each breaks a law of their
// tests, which a sound run holds. A fault is a wrapper around the product's mixer, other ranks, or
// other patches than the law is told of.
//
// | fault | law that fails |
// |---|---|
// | text keys are counted in no step, or twice | L-U2 |
// | rows are exchanged that were never sharded | L-C4 |
// | rope has local positions | L-RoPE |
// | padding is attended to | L-U1 |
// | a table of sizes outlives its shape | L-U1 |
// | the branches of guidance share or swap their keys | L-K3, L-C1 |
// | keys are rank by rank in warm-up, patch by patch later | L-PF5 |
// | the neighbour is a rank of the other branch | L-C1 with L-P1 |
// | a buffer is overwritten while it is read | delays change no bit |
//
// Planted elsewhere: noise per rank, steps and histories per patch (tests/engine/denoiser_test.cc);
// both ways on one communicator, patches that are not the stages (pipefusion_plan_test.cc).
#include "tests/parallel/displaced_run.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

// Changes what the mixer inside is told, or does nothing.
class PlantedMixer : public TokenMixer {
 public:
  explicit PlantedMixer(std::unique_ptr<TokenMixer> inner) : inner_(std::move(inner)) {}
  void begin(const Pass& pass) override { inner_->begin(pass); }
  void attend(Context& context, const Attend& attend) override { inner_->attend(context, attend); }
  void finish() override { inner_->finish(); }

 protected:
  std::unique_ptr<TokenMixer> inner_;
};

// The replicated rows are seen `times` times.
template <int times>
class CountedText final : public PlantedMixer {
 public:
  using PlantedMixer::PlantedMixer;
  void attend(Context& context, const Attend& attend) override {
    const int64_t text = attend.replicated, own = attend.q[0] - text;
    const auto rows = [&](const TensorView& x) {
      const TensorView all = context.arena.alloc(x.dtype, {own + times * text, x[1], x[2]});
      copy(context.stream, x.slice(0, 0, own), all.slice(0, 0, own));
      for (int i = 0; i < times; ++i)
        copy(context.stream, x.slice(0, own, text), all.slice(0, own + i * text, text));
      return all;
    };
    Attend counted = attend;
    counted.q = rows(attend.q);
    counted.k = rows(attend.k);
    counted.v = rows(attend.v);
    counted.out = context.arena.alloc(attend.out.dtype, counted.q.shape());
    counted.replicated = times * text;
    inner_->attend(context, counted);
    copy(context.stream, counted.out.slice(0, 0, own), attend.out.slice(0, 0, own));
    if (times > 0)
      copy(context.stream, counted.out.slice(0, own, text), attend.out.slice(0, own, text));
  }
};

// Two rows of zeros are seen beside the tokens.
class SeenPadding final : public PlantedMixer {
 public:
  using PlantedMixer::PlantedMixer;
  void attend(Context& context, const Attend& attend) override {
    constexpr int64_t kPadding = 2;
    const int64_t own = attend.q[0];
    const auto rows = [&](const TensorView& x) {
      const TensorView all = context.arena.alloc(x.dtype, {own + kPadding, x[1], x[2]});
      std::memset(all.data, 0, all.bytes());
      copy(context.stream, x, all.slice(0, 0, own));
      return all;
    };
    Attend padded = attend;
    padded.q = rows(attend.q);
    padded.k = rows(attend.k);
    padded.v = rows(attend.v);
    padded.out = context.arena.alloc(attend.out.dtype, padded.q.shape());
    padded.replicated += kPadding;
    inner_->attend(context, padded);
    copy(context.stream, padded.out.slice(0, 0, own), attend.out);
  }
};

class LocalPositions final : public PlantedMixer {
 public:
  using PlantedMixer::PlantedMixer;
  void attend(Context& context, const Attend& attend) override {
    Context local = context;
    local.tokens.ranges = {{0, context.tokens.size()}};
    inner_->attend(local, attend);
  }
};

// The branches change places in every other step.
class SwappedBranches final : public PlantedMixer {
 public:
  using PlantedMixer::PlantedMixer;
  void begin(const Pass& pass) override {
    Pass swapped = pass;
    swapped.branch ^= pass.step % 2;
    inner_->begin(swapped);
  }
};

class OneBranch final : public PlantedMixer {
 public:
  using PlantedMixer::PlantedMixer;
  void begin(const Pass& pass) override {
    Pass one = pass;
    one.branch = 0;
    inner_->begin(one);
  }
};

using Plant = std::function<std::unique_ptr<TokenMixer>(std::unique_ptr<TokenMixer>)>;

std::unique_ptr<TokenMixer> nothing(std::unique_ptr<TokenMixer> mixer) { return mixer; }
template <class Planted>
std::unique_ptr<TokenMixer> planted(std::unique_ptr<TokenMixer> mixer) {
  return std::make_unique<Planted>(std::move(mixer));
}

void plant(StepRun& run, const Plant& fault) {
  run.make = [make = run.make, fault](Communicator& world) {
    RankOfRun rank = make(world);
    return RankOfRun{fault(std::move(rank.mixer)), rank.own};
  };
}

const std::vector<Displaced> kDisplaced = {{.patches = {9, 7, 8}, .warmup = 1},
                                           {.patches = {8, 8, 8}, .window = 0.3, .warmup = 1}};
const PipeFusion kPipeFusion{.patches = {8, 8, 8}, .warmup = 1};
constexpr int kPlantedSteps = 3;

// The law that displaced patches are their definition. The replicated rows of others than patch 0
// are not compared.
bool is_displaced(const Shapes& shapes, const Displaced& method, const Plant& fault) {
  const std::vector<Features> values = features(shapes, kPlantedSteps);
  StepRun run = displaced_run(PatchRows(method, ranges_of(method.patches)), passes(kPlantedSteps));
  plant(run, fault);
  const auto out = run_steps(shapes, run, values);
  bool holds = true;
  for (int step = 0; step < kPlantedSteps; ++step)
    holds &= relative_l2(out[step], by_definition(shapes, method, values, step)) <= 1e-6;
  return holds;
}

// Laws L-PF4 and L-PF5: the same for PipeFusion, under a split of its patches.
bool is_pipefusion(const Shapes& shapes, const Layout& layout, const Plant& fault) {
  const std::vector<Features> values =
      features(shapes, kPlantedSteps, static_cast<int64_t>(kPipeFusion.patches.size()));
  StepRun run = pipefusion_run(shapes, kPipeFusion, layout, kPlantedSteps);
  plant(run, fault);
  const auto out = run_steps(shapes, run, values);
  bool holds = true;
  for (int step = 0; step < kPlantedSteps; ++step)
    holds &= relative_l2(out[step], by_definition(shapes, kPipeFusion, values, step)) <= 1e-6;
  return holds;
}

const std::vector<Layout> kSplits = {{}, split(1, 2), split(2, 1), split(2, 2)};

TEST(PlantedFaults, TextThatIsCountedTwiceOrNeverFailsTheLaw) {
  const Shapes shapes{.replicated = 2};
  for (const Displaced& method : kDisplaced) {
    EXPECT_TRUE(is_displaced(shapes, method, nothing));
    EXPECT_FALSE(is_displaced(shapes, method, planted<CountedText<0>>));
    EXPECT_FALSE(is_displaced(shapes, method, planted<CountedText<2>>));
  }
  for (const Layout& layout : kSplits) {
    EXPECT_TRUE(is_pipefusion(shapes, layout, nothing)) << to_string(layout);
    EXPECT_FALSE(is_pipefusion(shapes, layout, planted<CountedText<0>>)) << to_string(layout);
    EXPECT_FALSE(is_pipefusion(shapes, layout, planted<CountedText<2>>)) << to_string(layout);
  }
}

TEST(PlantedFaults, PaddingThatIsSeenFailsTheLaw) {
  for (const Displaced& method : kDisplaced) {
    EXPECT_TRUE(is_displaced({}, method, nothing));
    EXPECT_FALSE(is_displaced({}, method, planted<SeenPadding>));
  }
  for (const Layout& layout : kSplits)
    EXPECT_FALSE(is_pipefusion({}, layout, planted<SeenPadding>)) << to_string(layout);
}

TEST(PlantedFaults, LocalPositionsFailTheLaw) {
  for (const Displaced& method : kDisplaced)
    EXPECT_FALSE(is_displaced({}, method, planted<LocalPositions>));
  for (const Layout& layout : {Layout{}, split(2, 1)})  // Ulysses gives its own positions
    EXPECT_FALSE(is_pipefusion({}, layout, planted<LocalPositions>)) << to_string(layout);
}

// Every rank holds all tokens and takes part in the exchange all the same.
TEST(PlantedFaults, AnExchangeOfWhatIsNotShardedFailsTheLaw) {
  const std::vector<Features> values = features({}, kPlantedSteps);
  for (const bool sharded : {true, false}) {
    const PipeFusion method{.patches = {24}, .warmup = kPlantedSteps};
    StepRun run = pipefusion_run({}, method, split(1, 2), kPlantedSteps);
    if (!sharded)
      run.make = [make = run.make](Communicator& world) {
        RankOfRun rank = make(world);
        // The first tokens stand for all, on both ranks.
        rank.own = [](const Pass&) { return TokenRanges{{{0, 12}}, 24}; };
        return rank;
      };
    const auto out = run_steps({}, run, values);
    EXPECT_EQ(relative_l2(out[0], by_definition({}, method, values, 0)) <= 1e-6, sharded);
  }
}

// A rank goes on with the patches of the shape before, which have as many tokens on that rank.
TEST(PlantedFaults, PatchesOfAnotherShapeFailTheLaw) {
  const Displaced first{.patches = {9, 7, 8}, .window = 0.3, .warmup = 1},
      second{.patches = {9, 7, 4, 4}, .window = 0.3, .warmup = 1};
  const std::vector<Features> values = features({}, kPlantedSteps);
  for (const Displaced* used : {&second, &first}) {
    std::vector<int> each(used->patches.size(), 1);
    const auto out = run_steps(
        {}, displaced_run(PatchRows(*used, ranks_of(*used, each)), passes(kPlantedSteps)), values);
    EXPECT_EQ(relative_l2(out[2], by_definition({}, second, values, 2)) <= 1e-6, used == &second);
  }
}

// Laws L-K3 and L-C1: a branch has the result that it has alone. The other one's features are those
// of the steps in reverse.
bool branches_are_apart(StepRun run, const Plant& fault) {
  plant(run, nothing);
  const std::vector<Features> one = features({}, kPlantedSteps);
  const auto alone = run_steps({}, run, one);
  std::vector<Features> both;
  for (int step = 0; step < kPlantedSteps; ++step)
    for (int branch = 0; branch < 2; ++branch)
      both.emplace_back(Shapes{}, branch ? kPlantedSteps - 1 - step : step);
  std::vector<Forward> forwards;
  for (int branch = 0; branch < 2; ++branch)
    for (Forward forward : run.forwards) {
      forward.values = 2 * forward.values + branch;
      forward.pass.branch = branch;
      forwards.push_back(forward);
    }
  std::ranges::stable_sort(forwards, {}, [](const Forward& f) { return f.values; });
  run.forwards = forwards;
  plant(run, fault);
  const auto beside = run_steps({}, run, both);
  bool apart = true;
  for (int step = 0; step < kPlantedSteps; ++step)
    apart &= same_bits(beside[2 * step], alone[step]);
  return apart;
}

TEST(PlantedFaults, BranchesThatShareTheirKeysFailTheLaw) {
  for (const Displaced& method : kDisplaced) {
    const StepRun run =
        displaced_run(PatchRows(method, ranges_of(method.patches)), passes(kPlantedSteps));
    EXPECT_TRUE(branches_are_apart(run, nothing));
    EXPECT_FALSE(branches_are_apart(run, planted<SwappedBranches>));
  }
  for (const Layout& layout : kSplits) {
    const StepRun run = pipefusion_run({}, kPipeFusion, layout, kPlantedSteps);
    EXPECT_TRUE(branches_are_apart(run, nothing)) << to_string(layout);
    EXPECT_FALSE(branches_are_apart(run, planted<SwappedBranches>)) << to_string(layout);
  }
}

// One set of keys is refused: the second branch comes with a step that is there already.
TEST(PlantedFaultsDeathTest, OneSetOfKeysForBothBranchesIsRefused) {
  const StepRun displaced =
      displaced_run(PatchRows({.patches = {24}}, {{0, 24}}), passes(kPlantedSteps));
  EXPECT_DEATH(branches_are_apart(displaced, planted<OneBranch>),
               "is written in version 0 after 0");
  EXPECT_DEATH(
      branches_are_apart(pipefusion_run({}, kPipeFusion, {}, kPlantedSteps), planted<OneBranch>),
      "patch 2 is of step 1 in step 1 micro 1");
}

// Law L-PF5. In the exact step the ranks' rows are cut rank by rank, and the kept keys patch by
// patch: the first displaced step sees some tokens twice and others never.
TEST(PlantedFaults, KeysInAnotherOrderInWarmupFailTheLaw) {
  const std::vector<Features> values = features({}, kPlantedSteps, std::ssize(kPipeFusion.patches));
  for (const Layout& layout : {split(1, 2), split(2, 1), split(2, 2)})
    for (const bool by_rank : {false, true}) {
      StepRun run = pipefusion_run({}, kPipeFusion, layout, kPlantedSteps);
      if (by_rank)
        run.make = [make = run.make, parts = layout.sequence()](Communicator& world) {
          RankOfRun rank = make(world);
          rank.own = [own = rank.own, parts, index = world.rank()](const Pass& pass) {
            return pass.micro == kAllPatches ? SequenceMap::contiguous(24, parts)[index]
                                             : own(pass);
          };
          return rank;
        };
      const auto out = run_steps({}, run, values);
      const auto right = [&](int step) {
        return relative_l2(out[step], by_definition({}, kPipeFusion, values, step)) <= 1e-6;
      };
      EXPECT_EQ(right(1), !by_rank) << to_string(layout);
      // A ring's exact step is right all the same; Ulysses turns rows by their places.
      EXPECT_EQ(right(0), !by_rank || layout[Axis::kUlysses] == 1) << to_string(layout);
    }
}

// Laws L-C1 and L-P1. Four ranks are two branches of two patches. The group of a rank's patches
// holds the ranks of its branch, or, as planted, those of its patch.
bool branches_of_ranks_are_apart(bool of_branch, const Plant& fault) {
  const Displaced method{.patches = {12, 12}, .window = 1, .warmup = 1};
  const PatchRows rows(method, ranges_of(method.patches));
  std::array<std::vector<Features>, 2> values;
  std::array<std::vector<Tensor>, 2> out;
  for (int branch = 0; branch < 2; ++branch)
    for (int step = 0; step < kPlantedSteps; ++step) {
      values[branch].emplace_back(Shapes{}, 7 * branch + step);
      out[branch].emplace_back(DType::kF32, values[branch].back().q.view().shape());
    }
  run_ranks(4, [&](Communicator& world) {
    const int branch = world.rank() / 2, patch = world.rank() % 2;
    StepRun run = displaced_run(rows, passes(kPlantedSteps, branch));
    run.make = [&](Communicator&) {
      const std::vector<int> group = of_branch ? std::vector<int>{2 * branch, 2 * branch + 1}
                                               : std::vector<int>{patch, patch + 2};
      const TokenRanges own{{rows.rank(patch)}, rows.tokens()};
      return RankOfRun{std::make_unique<DisplacedMixer>(world.group(group, 7), rows),
                       [own](const Pass&) { return own; }};
    };
    plant(run, fault);
    run_rank({}, run, values[branch], out[branch], world);
  });
  bool holds = true;
  for (int branch = 0; branch < 2; ++branch)
    for (int step = 0; step < kPlantedSteps; ++step)
      holds &=
          relative_l2(out[branch][step], by_definition({}, method, values[branch], step)) <= 1e-6;
  return holds;
}

// The tags name the branch, so that no message of the wrong group meets its receive. Without it the
// law fails.
TEST(PlantedFaults, ANeighbourOfTheOtherBranchFailsTheLaw) {
  EXPECT_TRUE(branches_of_ranks_are_apart(true, nothing));
  EXPECT_TRUE(branches_of_ranks_are_apart(true, planted<OneBranch>));
  EXPECT_FALSE(branches_of_ranks_are_apart(false, planted<OneBranch>));
  expect_error(ErrorKind::kComm, "branch 1", [&] { branches_of_ranks_are_apart(false, nothing); });
}

// Displaced patches with one buffer per peer. `early`: the present keys are posted before the
// attention has read those of the step before, into the buffer that it reads.
class OneBufferMixer final : public TokenMixer {
 public:
  OneBufferMixer(Communicator group, const PatchRows& rows, bool early)
      : group_(std::move(group)), rows_(rows), early_(early) {}

  void attend(Context& context, const Attend& attend) override {
    const AttendTags tags = take_tags(attend.layer, 1);
    apply_positions(context, attend);
    const auto side = [&](int which, int rank) {
      return kept_[which].view().slice(0, rows_.rank(rank).begin, rows_.rank(rank).size());
    };
    if (!kept_[0])
      for (Tensor& half : kept_)
        half = Tensor(attend.k.dtype, {rows_.tokens(), attend.k[1], attend.k[2]});
    const int own = group_.rank();
    const bool exact = context.pass.step == 0;
    if (!pending_.empty()) group_.wait(pending_);
    const auto see = [&] {
      std::vector<KVSegment> segments;
      for (int rank = 0; rank < rows_.ranks(); ++rank)
        segments.push_back(rank == own
                               ? KVSegment{attend.k, attend.v, rows_.rank(rank).begin}
                               : KVSegment{side(0, rank), side(1, rank), rows_.rank(rank).begin});
      attention(context.stream,
                {.q = attend.q, .segments = segments, .scale = attend.scale, .out = attend.out});
    };
    if (!exact && !early_) see();
    copy(context.stream, attend.k, side(0, own));
    copy(context.stream, attend.v, side(1, own));
    std::vector<Message> sends, receives;
    for (int peer = 0; peer < rows_.ranks(); ++peer)
      for (int which = 0; which < 2 && peer != own; ++which) {
        const Payload kind = which ? Payload::kVelocity : Payload::kKeyValue;
        sends.push_back({peer, tags(kind), side(which, own)});
        receives.push_back({peer, tags(kind), side(which, peer)});
      }
    pending_ = group_.post(context.stream, sends, receives);
    if (exact) group_.wait(pending_);
    if (exact || early_) see();
  }
  void finish() override {
    TokenMixer::finish();
    if (!pending_.empty()) group_.wait(pending_);
  }

 private:
  Communicator group_;
  const PatchRows rows_;
  const bool early_;
  std::array<Tensor, 2> kept_;  // keys, values of all tokens
  Communicator::Pending pending_;
};

// 100 delay seeds change no bit of what the product's mixer gives.
TEST(PlantedFaults, ABufferThatIsOverwrittenEarlyIsCaughtByTheDelays) {
  const Displaced method{.patches = {9, 7, 8}, .warmup = 1};
  const PatchRows rows(method, ranges_of(method.patches));
  const std::vector<Features> values = features({}, kPlantedSteps);
  const auto product = run_steps({}, displaced_run(rows, passes(kPlantedSteps)), values);
  for (const bool early : {false, true}) {
    int changed = 0;
    for (uint64_t seed = 1; seed <= 100; ++seed) {
      StepRun run = displaced_run(rows, passes(kPlantedSteps));
      run.options = {.rendezvous = seed % 2 == 0, .delay_seed = seed, .max_delay_us = 50};
      run.make = [&](Communicator& world) {
        const TokenRanges own{{rows.rank(world.rank())}, rows.tokens()};
        return RankOfRun{
            std::make_unique<OneBufferMixer>(world.group(everybody(3), 7), rows, early),
            [own](const Pass&) { return own; }};
      };
      const auto out = run_steps({}, run, values);
      bool same = true;
      for (int step = 0; step < kPlantedSteps; ++step) same &= same_bits(out[step], product[step]);
      changed += !same;
    }
    if (early)
      EXPECT_GT(changed, 50);
    else
      EXPECT_EQ(changed, 0);
  }
}

}  // namespace
}  // namespace weft::test
