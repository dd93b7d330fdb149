// Whole jobs with the cache first-block, which decides in every step whether the blocks after the
// first one are skipped.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <span>

#include "engine/job/resume.h"
#include "tests/engine/replica_job.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

Request first_block_job(double threshold) {
  Request request = test::job();
  request.frames = 5;
  request.steps = 8;
  request.cache = {StepCacheKind::kFirstBlock, threshold, {}};
  return request;
}

struct RanFirstBlock {
  std::vector<float> latent;
  RunResult result;
  std::vector<int> skipped() const { return *result.request.cache.skipped; }
};

RanFirstBlock run_first_block(const Request& request, RankPlacement placement = {},
                              RunOptions options = {}) {
  LatentTap tap;
  Generator generator(kModel, options_of(DType::kF32), std::move(placement));
  options.tap = &tap;
  RunResult result = generator.run(request, nullptr, options);
  return {std::move(tap.latents), std::move(result)};
}

// A threshold under which some steps are skipped and some are not.
double between() {
  for (double threshold = 0.01; threshold < 100; threshold *= 1.3) {
    const size_t skipped = run_first_block(first_block_job(threshold)).skipped().size();
    if (skipped >= 2 && skipped < 6) return threshold;
  }
  ADD_FAILURE() << "no threshold skips a part of the steps";
  return 1;
}

TEST(FirstBlock, ThresholdZeroGivesTheBitsOfNoCacheAndALargeOneSkipsAllButTheEnds) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Generator generator(kModel, options_of(dtype));
    Request request = first_block_job(0);
    const RunResult none = generator.run(request, nullptr);
    request.cache = {};
    const RunResult plain = generator.run(request, nullptr);
    EXPECT_EQ(none.signature, plain.signature);
    EXPECT_EQ(none.framehash, plain.framehash);
    EXPECT_TRUE(none.request.cache.skipped->empty());
    EXPECT_GT(*none.cached[3].output_change, 0);
    const RunResult all = generator.run(first_block_job(1000), nullptr);
    EXPECT_EQ(*all.request.cache.skipped, (std::vector<int>{1, 2, 3, 4, 5, 6}));
    EXPECT_NE(all.signature, plain.signature);
  }
}

TEST(FirstBlock, ARecordedDecisionIsRepeatedAndAnAuditChangesNothing) {
  Request request = first_block_job(between());
  RunOptions options;
  options.cache_audit = 2;
  const RanFirstBlock decided = run_first_block(request, {}, options);
  int audits = 0;
  for (const CachedStep& step : decided.result.cached) audits += step.error.has_value();
  EXPECT_EQ(audits, static_cast<int>(decided.skipped().size()) / 2);
  request.cache.skipped = decided.skipped();
  request.cache.threshold = 0;  // it decides nothing any more
  const RanFirstBlock again = run_first_block(request);
  EXPECT_EQ(again.latent, decided.latent);
  EXPECT_EQ(again.skipped(), decided.skipped());
}

TEST(FirstBlock, EveryLayoutDecidesAlikeAndGivesOneRanksLatents) {
  const Request request = first_block_job(between());
  const RanFirstBlock alone = run_first_block(request);
  const Generator generator(kModel, options_of(DType::kF32));
  const LayoutLimits limits = generator.layout_limits(generator.resolve(request));
  int tried = 0;
  for (int ranks = 2; ranks <= 4; ++ranks)
    for (Layout layout : legal_layouts(ranks, limits)) {
      if (layout[Axis::kData] > 1) continue;
      layout.text_ranks = 1;  // a split encoder adds up in another order
      RanFirstBlock root;
      run_ranks(ranks, [&](Communicator& world) {
        RanFirstBlock mine = run_first_block(request, RankPlacement::of(world, layout));
        if (world.rank() == 0) root = std::move(mine);
      });
      if (layout[Axis::kCfg] * layout[Axis::kLayers] == ranks)
        EXPECT_EQ(root.latent, alone.latent) << to_string(layout);
      else
        EXPECT_LE(rel_l2(root.latent, alone.latent), 1e-5) << to_string(layout);
      EXPECT_EQ(root.skipped(), alone.skipped()) << to_string(layout);
      ++tried;
    }
  EXPECT_GT(tried, 6);
}

// The memory of the cache itself, where all steps but the ends are skipped, and where none is.
TEST(FirstBlock, MemoryIsAsPlanned) {
  const auto sizes = [](const Request& asked) {
    Generator generator(kModel, options_of(DType::kF32));
    Request request = asked;
    request.width = request.height = 128;
    request = generator.resolve(request);
    const auto planned = static_cast<double>(generator.plan(request).parts.denoise);
    return std::pair{planned,
                     static_cast<double>(generator.run(request, nullptr).stage_high_water[1])};
  };
  Request plain = first_block_job(0);
  plain.cache = {};
  const auto [planned_without, taken_without] = sizes(plain);
  for (const double threshold : {0.0, 1000.0}) {
    const auto [planned, taken] = sizes(first_block_job(threshold));
    const double ratio = (planned - planned_without) / (taken - taken_without);
    EXPECT_GE(ratio, 0.99) << threshold << " plans " << planned - planned_without << " more bytes";
    EXPECT_LE(ratio, 1.05) << threshold << " plans " << planned - planned_without << " more bytes";
  }
}

// A checkpoint is kept before a step that runs all blocks, which makes anew what later steps are
// compared with and reuse. It states what was skipped before it, and so does the final latent.
TEST(FirstBlock, AStoppedJobGoesOnWithTheSameFramesAndSkippedSteps) {
  const std::string path = testing::TempDir() + "/weft_first_block_" + std::to_string(getpid()),
                    kept_path = path + ".checkpoint.safetensors",
                    latents = path + ".latents.safetensors";
  const Request request = first_block_job(between());
  EXPECT_EQ(why_not_between_steps(request), "");
  const RanFirstBlock whole = run_first_block(request);
  const auto stages = [](Communicator& world, int count) {
    Layout layout;
    layout[Axis::kLayers] = count;
    layout.text_ranks = 1;  // a split encoder adds up in another order
    return RankPlacement::of(world, layout);
  };
  int resumed_behind_skips = 0;
  for (const int ranks : {1, 2})
    for (int after = 1; after < 8; ++after) {
      remove_checkpoints(kept_path);
      Stopper stopper;
      stopper.after = after;
      const auto start = [&](Communicator& world, const std::shared_ptr<Checkpoint>& from,
                             Stopper& listener) {
        RunOptions options;
        options.stop = &listener.stop;
        if (world.rank() == 0) {
          options.listener = &listener;
          options.checkpoint_path = kept_path;
          options.checkpoint_seconds = 1e9;
          options.resume = from;
        }
        return run_first_block(request, stages(world, ranks), options);
      };
      std::atomic<int> ended = 0;
      run_ranks(ranks, [&](Communicator& world) {
        Stopper deaf;
        try {
          start(world, nullptr, world.rank() == 0 ? stopper : deaf);
          ++ended;  // no later step was computed in which it could stop
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::kStopped) << error.what();
        }
      });
      if (ended > 0) continue;
      const auto kept = std::make_shared<Checkpoint>(read_checkpoint(kept_path));
      EXPECT_GE(kept->step, after);
      const std::vector<int> before = *read_skips(*kept);
      const std::vector<int> all = whole.skipped();
      EXPECT_TRUE(std::ranges::equal(before, std::span(all).first(before.size())));
      resumed_behind_skips += !before.empty();
      run_ranks(ranks, [&](Communicator& world) {
        Stopper deaf;
        const RanFirstBlock resumed = start(world, kept, deaf);
        if (world.rank() != 0) return;
        EXPECT_EQ(resumed.result.resumed_at, kept->step);
        EXPECT_EQ(resumed.latent, whole.latent) << after;
        EXPECT_EQ(resumed.result.framehash, whole.result.framehash) << after;
        EXPECT_EQ(resumed.skipped(), whole.skipped()) << after;
      });
    }
  EXPECT_GT(resumed_behind_skips, 1);
  remove_checkpoints(kept_path);

  RunOptions options;
  options.latents_path = latents;
  run_first_block(request, {}, options);
  RunOptions decoding;
  decoding.resume = std::make_shared<Checkpoint>(read_checkpoint(latents));
  EXPECT_TRUE(decoding.resume->final());
  const RanFirstBlock decoded = run_first_block(request, {}, decoding);
  EXPECT_EQ(decoded.result.framehash, whole.result.framehash);
  EXPECT_EQ(decoded.skipped(), whole.skipped());
  std::filesystem::remove(latents);
}

TEST(FirstBlock, ACheckpointWithoutTheSkippedStepsIsRefused) {
  const Request request = first_block_job(between());
  Generator generator(kModel, options_of(DType::kF32));
  Checkpoint kept;
  kept.path = "a.checkpoint";
  kept.job = generator.job_record(generator.resolve(request));
  kept.step = 3;
  kept.total = 8;
  JobFacts facts = generator.facts(generator.resolve(request));
  facts.latent = {16, 2, 4, 4};
  kept.latent = Tensor(DType::kF32, facts.latent);
  for (const auto& [name, tensor] : facts.sampler.history(SamplerState(0)))
    kept.history.emplace_back(name, Tensor(DType::kF32, {16 * 2 * 4 * 4}));
  expect_error(ErrorKind::kUsage, "it has no skipped_steps",
               [&] { check_resumable(kept, kept.job, facts); });
  kept.written["skipped_steps"] = "1,2";
  EXPECT_NO_THROW(check_resumable(kept, kept.job, facts));
}

}  // namespace
}  // namespace weft::test
