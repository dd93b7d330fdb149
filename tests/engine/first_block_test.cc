// Whole jobs with the cache first-block, which decides in every step whether the blocks behind the
// first one are skipped.
#include <gtest/gtest.h>

#include "engine/job/resume.h"
#include "tests/engine/replica_job.h"

namespace weft {
namespace {

using test::kModel;
using test::options_of;

Request cached_job(double threshold) {
  Request request = test::job();
  request.frames = 5;
  request.steps = 8;
  request.cache = {StepCacheKind::kFirstBlock, threshold, {}};
  return request;
}

struct Ran {
  std::vector<float> latent;
  RunResult result;
  std::vector<int> skipped() const { return *result.request.cache.skipped; }
};

Ran run(const Request& request, RankPlacement placement = {}, RunOptions options = {}) {
  struct LatentTap final : PipelineTap {
    std::vector<float> latent;
    void tap(const char* name, const TensorView& value) override {
      if (std::string(name) == "latents_final")
        latent.assign(value.as<float>(), value.as<float>() + value.count());
    }
  } tap;
  Generator generator(kModel, options_of(DType::kF32), std::move(placement));
  options.tap = &tap;
  RunResult result = generator.run(request, nullptr, options);
  return {std::move(tap.latent), std::move(result)};
}

// A threshold under which some steps are skipped and some are not.
double between() {
  for (double threshold = 0.01; threshold < 100; threshold *= 1.3) {
    const size_t skipped = run(cached_job(threshold)).skipped().size();
    if (skipped >= 2 && skipped < 6) return threshold;
  }
  ADD_FAILURE() << "no threshold skips a part of the steps";
  return 1;
}

TEST(FirstBlock, ThresholdZeroGivesTheBitsOfNoCacheAndALargeOneSkipsAllButTheEnds) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Generator generator(kModel, options_of(dtype));
    Request request = cached_job(0);
    const RunResult none = generator.run(request, nullptr);
    request.cache = {};
    const RunResult plain = generator.run(request, nullptr);
    EXPECT_EQ(none.signature, plain.signature);
    EXPECT_EQ(none.framehash, plain.framehash);
    EXPECT_TRUE(none.request.cache.skipped->empty());
    EXPECT_GT(*none.cached[3].output_change, 0);
    const RunResult all = generator.run(cached_job(1000), nullptr);
    EXPECT_EQ(*all.request.cache.skipped, (std::vector<int>{1, 2, 3, 4, 5, 6}));
    EXPECT_NE(all.signature, plain.signature);
  }
}

TEST(FirstBlock, ARecordedDecisionIsRepeatedAndAnAuditChangesNothing) {
  Request request = cached_job(between());
  RunOptions options;
  options.cache_audit = 2;
  const Ran decided = run(request, {}, options);
  int audits = 0;
  for (const CachedStep& step : decided.result.cached) audits += step.error.has_value();
  EXPECT_EQ(audits, static_cast<int>(decided.skipped().size()) / 2);
  request.cache.skipped = decided.skipped();
  request.cache.threshold = 0;  // it decides nothing any more
  const Ran again = run(request);
  EXPECT_EQ(again.latent, decided.latent);
  EXPECT_EQ(again.skipped(), decided.skipped());
}

TEST(FirstBlock, EveryLayoutDecidesAlikeAndGivesOneRanksLatents) {
  const Request request = cached_job(between());
  const Ran alone = run(request);
  const Generator generator(kModel, options_of(DType::kF32));
  const LayoutLimits limits = generator.layout_limits(generator.resolve(request));
  int tried = 0;
  for (int ranks = 2; ranks <= 4; ++ranks)
    for (Layout layout : legal_layouts(ranks, limits)) {
      if (layout[Axis::kData] > 1) continue;
      layout.text_ranks = 1;  // a split encoder adds up in another order
      Ran root;
      run_ranks(ranks, [&](Communicator& world) {
        Ran mine = run(request, RankPlacement::of(world, layout));
        if (world.rank() == 0) root = std::move(mine);
      });
      if (layout[Axis::kCfg] * layout[Axis::kLayers] == ranks)
        EXPECT_EQ(root.latent, alone.latent) << to_string(layout);
      else
        EXPECT_LE(test::rel_l2(root.latent, alone.latent), 1e-5) << to_string(layout);
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
  Request plain = cached_job(0);
  plain.cache = {};
  const auto [planned_without, taken_without] = sizes(plain);
  for (const double threshold : {0.0, 1000.0}) {
    const auto [planned, taken] = sizes(cached_job(threshold));
    const double ratio = (planned - planned_without) / (taken - taken_without);
    EXPECT_GE(ratio, 0.99) << threshold << " plans " << planned - planned_without << " more bytes";
    EXPECT_LE(ratio, 1.05) << threshold << " plans " << planned - planned_without << " more bytes";
  }
}

TEST(FirstBlock, AStoppedJobKeepsNoCheckpoint) {
  EXPECT_NE(why_not_between_steps(cached_job(0.1)), "");
  Request recorded = cached_job(0.1);
  recorded.cache.skipped = std::vector<int>{2};
  EXPECT_EQ(why_not_between_steps(recorded), "");
}

}  // namespace
}  // namespace weft
