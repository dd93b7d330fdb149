// Tests the segments of streams with a small random transformer: the same bits under every split,
// with segments of any sizes, without a known end, and with memory that does not grow.
#include "engine/schedules/stream_denoiser.h"

#include <atomic>
#include <cmath>
#include <random>
#include <set>

#include "tests/engine/stream_job.h"
#include "tests/parallel/byte_formulas.h"
#include "tests/parallel/stream_byte_formulas.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

struct SplitOfStream {
  int steps, layers;
  bool apart;
  int ulysses = 1;
};
const std::vector<SplitOfStream> kStreamSplits{
    {1, 1, true},     {2, 1, false},   {3, 1, true},     {4, 1, false},  {4, 1, true},
    {1, 2, false},    {1, 2, true},    {1, 3, false},    {2, 2, false},  {2, 2, true},
    {1, 1, false, 2}, {1, 1, true, 3}, {2, 1, false, 2}, {4, 1, true, 2}};

// Runs `run` under every split and compares what is decoded with what one rank makes.
void expect_the_same_under_every_split(StreamRun run, const std::vector<Decoded>& wanted) {
  for (const auto& [steps, layers, apart, ulysses] : kStreamSplits) {
    run.decodes_apart = apart;
    EXPECT_EQ(run.run(StreamRun::split(steps, layers, ulysses)), wanted)
        << "step " << steps << " layers " << layers << " ulysses " << ulysses << " decoder apart "
        << apart;
  }
}

// Laws 1 to 3.
TEST(StreamDenoiser, TheSameBitsUnderEverySplit) {
  const StreamRun run{.segments = 9};
  const std::vector<Decoded> wanted = run.run();
  ASSERT_EQ(wanted.size(), 9u);
  expect_the_same_under_every_split(run, wanted);
}

// A fault that only a stream that has settled shows is found before anything runs, whoever has it.
TEST(StreamDenoiser, AFaultInItsPlanIsFoundBeforeItRuns) {
  for (const int ranks : {2, 4}) {
    StreamRun run{.swap_segment = 0};
    run.next = [](int64_t number) { return NextSegment{.frames = 3, .last = number == 40}; };
    // The last rank forgets a message once the stream repeats itself.
    run.plan = [](const StreamPlanConfig& config, const Range& turns, int rank) {
      Plan plan = plan_stream(config, turns, rank);
      const auto forgotten = std::ranges::find_if(plan.steps, [&](const Step& step) {
        return step.kind == Step::Kind::kSend && step.turn > 20;
      });
      if (rank + 1 == config.ranks() && forgotten != plan.steps.end()) plan.steps.erase(forgotten);
      return plan;
    };
    EXPECT_DEATH(run.run(StreamRun::split(ranks)), "CHECK.*no send reads") << ranks;
    run.plan = plan_stream;
    EXPECT_EQ(run.run(StreamRun::split(ranks)).size(), 41u);
  }
}

// Law 3: layers and steps move between ranks, with their keys, in mid-stream.
TEST(StreamDenoiser, LayersMoveBetweenRanksWithTheirKeys) {
  for (const KeptRows kept : {KeptRows::kCompute, KeptRows::kFp8}) {
    const StreamRun whole{.swap_segment = 0, .segments = 12, .kept = kept};
    const std::vector<Decoded> wanted = whole.run();
    const std::vector<std::vector<SplitOfStream>> moves{
        {{1, 2, false}, {1, 4, false}, {1, 3, true}, {1, 1, false}},
        {{4, 1, true}, {2, 2, false}, {1, 1, false}, {3, 1, false}},
        {{1, 1, false}, {1, 1, true}, {2, 1, true}, {1, 3, false}}};
    for (const std::vector<SplitOfStream>& splits : moves) {
      StreamState state;
      std::vector<Decoded> got;
      int64_t end = 0;
      for (const SplitOfStream& split : splits) {
        StreamRun part{.swap_segment = 0, .decodes_apart = split.apart, .kept = kept};
        part.state = &state;
        end += 3;
        part.next = [end](int64_t number) {
          return NextSegment{.frames = 3, .last = number + 1 == end};
        };
        for (Decoded& segment : part.run(StreamRun::split(split.steps, split.layers)))
          got.push_back(std::move(segment));
        EXPECT_EQ(state.following.number, end);
      }
      EXPECT_EQ(got, wanted) << splits[0].steps << ' ' << splits[0].layers;
    }
  }
}

// Law 18: coded rows are those of every split, too, and not far from the others.
TEST(StreamDenoiser, RingsMayBeKeptInEightBits) {
  StreamRun run{.segments = 9};
  const std::vector<Decoded> exact = run.run();
  for (const auto& [kept, most] :
       {std::pair{KeptRows::kFp8, 1.0 / 16}, {KeptRows::kInt8, 1.0 / 64}}) {
    run.kept = kept;
    const std::vector<Decoded> wanted = run.run();
    for (int segment = 0; segment < 9; ++segment) {
      double error = 0, norm = 0;
      for (size_t i = 0; i < exact[segment].latent.size(); ++i) {
        error += std::pow(double{wanted[segment].latent[i]} - exact[segment].latent[i], 2);
        norm += std::pow(double{exact[segment].latent[i]}, 2);
      }
      EXPECT_LE(std::sqrt(error / norm), most) << segment;
      EXPECT_GT(error, 0) << segment;
    }
    expect_the_same_under_every_split(run, wanted);
  }
}

TEST(StreamDenoiser, FollowsItsSignal) {
  StreamRun run{.segments = 5};
  const std::vector<Decoded> wanted = run.run();
  run.loud = [](const Segment& segment) {
    return 0.3f * static_cast<float>(segment.number % 5) + (segment.number == 2 ? 0.1f : 0.0f);
  };
  const std::vector<Decoded> louder = run.run();
  for (int segment = 0; segment < 5; ++segment)
    EXPECT_EQ(louder[segment] == wanted[segment], segment < 2) << segment;
  run.columns = 0;
  EXPECT_FALSE(run.run()[0] == wanted[0]);
}

// The end is decided while the stream runs; segments after it are not computed.
TEST(StreamDenoiser, EndsWhereTheFirstRankSays) {
  for (const int last : {0, 1, 2, 5, 13}) {
    StreamRun finite{.segments = last + 1};
    if (last < finite.swap_segment) finite.swap_segment = 0;
    StreamRun run;
    run.next = [last](int64_t number) {
      EXPECT_LE(number, last);
      return NextSegment{.frames = 3, .last = number == last};
    };
    const std::vector<Decoded> wanted = finite.run();
    ASSERT_EQ(std::ssize(wanted), last + 1);
    EXPECT_EQ(run.run(), wanted);
    expect_the_same_under_every_split(run, wanted);
  }
}

// Segments of any sizes, hollow ones among them, which change nothing but when a segment comes.
TEST(StreamDenoiser, BlocksMayHaveAnySize) {
  std::mt19937 random(3);
  for (int round = 0; round < 4; ++round) {
    std::vector<int64_t> sizes{1 + int64_t(random() % 3)}, solid;
    for (int i = 0; i < 14; ++i) sizes.push_back(int64_t(random() % 4));
    for (const int64_t size : sizes)
      if (size > 0) solid.push_back(size);
    const auto in_order = [](StreamRun run, const std::vector<int64_t>& of,
                             const SplitOfStream& split) {
      size_t at = 0;
      run.decodes_apart = split.apart;
      run.next = [&](int64_t) {
        const int64_t frames = of[at++];
        return NextSegment{.frames = frames, .last = at == of.size()};
      };
      return run.run(StreamRun::split(split.steps, split.layers, split.ulysses));
    };
    const std::vector<Decoded> wanted = in_order({}, solid, {1, 1, false});
    ASSERT_EQ(wanted.size(), solid.size());
    for (size_t i = 0; i < solid.size(); ++i)
      EXPECT_EQ(wanted[i].segment.frames.size(), solid[i]) << i;
    EXPECT_EQ(in_order({}, sizes, {1, 1, false}), wanted);
    for (const SplitOfStream& split : kStreamSplits) EXPECT_EQ(in_order({}, sizes, split), wanted);
  }
}

TEST(StreamDenoiser, IllegalSizesAreNamed) {
  const auto error_of = [](int64_t first, int64_t second) -> std::string {
    StreamRun run;
    run.next = [=](int64_t number) {
      return NextSegment{.frames = number == 0 ? first : second, .last = number == 1};
    };
    return test::error_of([&] { run.run(); });
  };
  EXPECT_TRUE(contains(error_of(3, 4), "block 1 of a stream has 4 latent frames"));
  EXPECT_TRUE(contains(error_of(0, 3), "the first one has at least 1"));
  EXPECT_EQ(error_of(1, 2), "");
}

// Law 14 and part of law 15: segment numbers pass those that tags can hold.
TEST(StreamDenoiser, TenThousandBlocksInTheSameMemory) {
  StreamRun run{.steps = 2, .layers = 2};
  run.largest = 1;
  run.window = 3;
  run.next = [](int64_t number) { return NextSegment{.frames = 1, .last = number + 1 == 10'000}; };
  for (const SplitOfStream& split : {SplitOfStream{1, 1, false},
                                     {2, 1, true},
                                     {1, 2, false},
                                     {1, 1, false, 2},
                                     {1, 1, true, 3}}) {
    int64_t count = 0;
    size_t after_two_windows = 0, most = 0;
    run.decodes_apart = split.apart;
    run.decode = [&](const Segment& segment, const TensorView&) {
      EXPECT_EQ(segment.number, count++);
      const size_t live = tensor_bytes_live();
      if (segment.number == 6) after_two_windows = live;
      if (segment.number > 6) most = std::max(most, live);
    };
    std::mutex mutex;
    std::map<int, size_t> arenas;  // by rank, after two windows
    run.updated = [&](int rank, const Pass& pass, size_t arena) {
      const std::scoped_lock lock(mutex);
      if (pass.segment == 6) arenas[rank] = arena;
      EXPECT_TRUE(pass.segment <= 6 || arena == arenas.at(rank)) << arena;
    };
    run.done = [&](int rank, size_t bytes) {
      const std::scoped_lock lock(mutex);
      const bool decodes_only = rank == split.steps * split.layers * split.ulysses;
      const CausalWindowShape shape{.layers = {0, run.layers / split.layers, run.layers},
                                    .steps = {0, run.steps / split.steps},
                                    .frames = run.window,
                                    .frame_tokens = 4,
                                    .sink_tokens = 4,
                                    .sinks = 2};
      const int heads = ToyAttention::kHeads / split.ulysses;
      const size_t kept = causal_window_cache_bytes(
          shape, {.heads = heads, .kv_heads = heads, .head_dim = ToyAttention::kHead});
      EXPECT_EQ(bytes, decodes_only ? 0 : kept);
    };
    run.run(StreamRun::split(split.steps, split.layers, split.ulysses));
    EXPECT_EQ(count, 10'000);
    EXPECT_LE(most, after_two_windows + (size_t{1} << 20)) << split.steps << " " << split.layers;
  }
}

// Law 15: the numbers of segments and turns pass those that tags can hold.
TEST(StreamDenoiser, TagsGoRoundInACircle) {
  for (const SplitOfStream& split : {SplitOfStream{2, 1, true}, {1, 2, false}, {1, 1, false, 2}}) {
    StreamRun run{.steps = 2, .layers = 2};
    run.decodes_apart = split.apart;
    int entered = 0;
    run.next = [&](int64_t number) {
      const bool solid = entered % 7'000 == 0;
      return NextSegment{.frames = solid ? 3 : 0, .last = ++entered == 70'001};
    };
    const std::vector<Decoded> out =
        run.run(StreamRun::split(split.steps, split.layers, split.ulysses));
    EXPECT_EQ(out, (StreamRun{.steps = 2, .layers = 2, .segments = 11}.run()));
  }
}

// Law 10. Segments of an epoch that is over are computed to their end, so that every ring is whole:
// all segments have the bits of a run in which their signals were known from the start.
TEST(StreamDenoiser, TwentyInterruptions) {
  constexpr int64_t kBlocks = 200;
  for (const SplitOfStream& split :
       {SplitOfStream{1, 1, false}, {4, 1, true}, {2, 2, true}, {1, 3, false}, {2, 1, true, 2}}) {
    std::mt19937 random(split.steps * 10 + split.layers);
    std::set<int64_t> interrupted;  // when these segments are decoded
    while (interrupted.size() < 20) interrupted.insert(int64_t(random() % (kBlocks - 1)));
    std::atomic<uint32_t> epoch = 0;
    std::vector<uint32_t> entered;  // epochs by segment, on the first rank
    int muted = 0, since = 0, most = 0;
    std::vector<Decoded> out;
    StreamRun run;
    run.decodes_apart = split.apart;
    run.next = [&](int64_t number) {
      entered.push_back(epoch);
      return NextSegment{
          .frames = 1 + number % 3, .epoch = entered.back(), .last = number + 1 == kBlocks};
    };
    run.loud = [](const Segment& segment) {
      return 0.1f * static_cast<float>(segment.number % 5) +
             0.2f * static_cast<float>(segment.epoch);
    };
    run.decode = [&](const Segment& segment, const TensorView& latent) {
      const float* from = latent.as<float>();
      out.push_back({segment, {from, from + latent.count()}});
      const bool is_muted = segment.epoch != epoch;
      EXPECT_LE(segment.epoch, epoch);
      EXPECT_TRUE(is_muted || out.size() < 2 || out[out.size() - 2].segment.epoch <= segment.epoch);
      since = is_muted ? since + 1 : 0;
      muted += is_muted;
      most = std::max(most, since);
      if (interrupted.contains(segment.number)) {
        ++epoch;
        since = 0;
      }
    };
    const Layout layout = StreamRun::split(split.steps, split.layers, split.ulysses);
    run.run(layout);
    ASSERT_EQ(std::ssize(out), kBlocks);
    EXPECT_EQ(epoch, 20u);
    const StreamPlanConfig config{
        .steps = run.steps, .layout = layout, .decodes_apart = split.apart};
    EXPECT_LE(most, config.under_way()) << split.steps << " " << split.layers;
    EXPECT_GE(muted, split.steps > 1) << split.steps;

    StreamRun same;
    same.next = [&](int64_t number) {
      return NextSegment{
          .frames = 1 + number % 3, .epoch = entered[number], .last = number + 1 == kBlocks};
    };
    same.loud = run.loud;
    EXPECT_EQ(same.run(), out);
  }
}

// Law 19: the word of a segment travels once to each rank, and its messages have no more bytes.
TEST(StreamDenoiser, BytesFollowTheFormulas) {
  for (const SplitOfStream& split : kStreamSplits)
    for (const int64_t columns : {0, 2, 50}) {
      StreamRun run{.swap_segment = 0, .segments = 9, .columns = columns};
      run.decodes_apart = split.apart;
      std::mutex mutex;
      StreamSent sent, wanted;
      run.counted = [&](const StreamPlanConfig& config, const CommCounters& counters) {
        const std::scoped_lock lock(mutex);
        const auto of = [&](Payload kind) {
          return counters.sent[static_cast<size_t>(kind)].bytes;
        };
        sent.latent += of(Payload::kLatent);
        sent.hidden += of(Payload::kHidden);
        sent.control += of(Payload::kControl);
        wanted = stream_sent_bytes(config, columns);
      };
      run.run(StreamRun::split(split.steps, split.layers, split.ulysses));
      const auto text = [&] {
        return std::to_string(split.steps) + " " + std::to_string(split.layers) + " " +
               std::to_string(split.ulysses) + " columns " + std::to_string(columns);
      };
      EXPECT_EQ(sent.latent, wanted.latent) << text();
      EXPECT_EQ(sent.hidden, wanted.hidden) << text();
      EXPECT_EQ(sent.control, wanted.control) << text();
    }
}

// Law 9, with messages that come late and in another order, and sends that wait for their receives.
TEST(StreamDenoiser, DelaysChangeNothing) {
  StreamRun run;
  int entered = 0;
  run.next = [&](int64_t) {
    const int64_t frames = ++entered % 4;
    return NextSegment{.frames = frames, .last = entered == 12};
  };
  const std::vector<Decoded> wanted = run.run();
  for (const LocalOptions& local :
       {LocalOptions{.rendezvous = true}, LocalOptions{.delay_seed = 3}, {.delay_seed = 4}})
    for (const int credits : {1, 2, 4}) {
      run.local = local;
      run.credits = credits;
      for (const SplitOfStream& split :
           {SplitOfStream{4, 1, true}, {2, 2, true}, {1, 3, false}, {2, 1, true, 2}}) {
        entered = 0;
        run.decodes_apart = split.apart;
        EXPECT_EQ(run.run(StreamRun::split(split.steps, split.layers, split.ulysses)), wanted)
            << split.steps << " " << split.layers << " " << split.ulysses << " credits " << credits;
      }
    }
}

}  // namespace
}  // namespace weft::test
