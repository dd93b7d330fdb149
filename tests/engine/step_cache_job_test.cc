// Whole jobs with a step cache: records, refusals, memory, resuming, and the bits of every layout.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <nlohmann/json.hpp>

#include "engine/job/job_spec.h"
#include "tests/engine/delivered_job.h"
#include "tests/engine/replica_job.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

TEST(StepCacheText, ARecordStatesTheSkippedStepsUntilOtherSettingsReplaceThem) {
  const FieldLabel label = [](const std::string& field) { return field; };
  JobSpec job;
  job.request.prompt = "a";
  job.request.steps = 8;
  job.request.cache = {StepCacheKind::kTeaCache, 0.1, std::vector<int>{2, 3}};
  const nlohmann::json record = to_json(job);
  EXPECT_EQ(record["skipped_steps"], nlohmann::json({2, 3}));
  JobSpec read;
  read_job(record, label, read);
  EXPECT_EQ(read.request.cache, job.request.cache);
  for (const nlohmann::json& change : {nlohmann::json{{"steps", 9}},
                                       {{"cache", "teacache:0.2"}},
                                       {{"flow_shift", 4}},
                                       {{"solver", "euler"}},
                                       {{"sigmas", "1,0.5"}}}) {
    JobSpec changed = read;
    read_job(change, label, changed);
    EXPECT_FALSE(changed.request.cache.skipped) << change;
  }
  EXPECT_FALSE(to_json(JobSpec{}).contains("cache"));
}

Request tea_cache_job(std::vector<int> skipped) {
  Request request = test::job();
  request.frames = 5;
  request.steps = 7;
  request.cache = {StepCacheKind::kTeaCache, 0.1, std::move(skipped)};
  return request;
}

TEST(StepCache, ThresholdZeroGivesTheBitsOfNoCache) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Generator generator(kModel, options_of(dtype));
    Request request = tea_cache_job({});
    request.cache = {StepCacheKind::kTeaCache, 0, {}};
    const RunResult cached = generator.run(request, nullptr);
    request.cache = {};
    const RunResult plain = generator.run(request, nullptr);
    EXPECT_EQ(cached.signature, plain.signature);
    EXPECT_EQ(cached.framehash, plain.framehash);
    EXPECT_EQ(cached.cached.size(), 7u);
    EXPECT_GT(cached.cached[3].embedding_change, 0);
    EXPECT_GT(*cached.cached[3].output_change, 0);
    EXPECT_TRUE(plain.cached.empty());
    request.cache = {StepCacheKind::kTeaCache, 0.1, std::vector<int>{3, 4}};
    EXPECT_NE(generator.run(request, nullptr).signature, plain.signature);
  }
}

TEST(StepCache, AnAuditMeasuresAndChangesNothing) {
  Generator generator(kModel, options_of(DType::kF32));
  const Request request = tea_cache_job({2, 3, 5});
  const RunResult plain = generator.run(request, nullptr);
  RunOptions options;
  options.cache_audit = 2;
  const RunResult audited = generator.run(request, nullptr, options);
  EXPECT_EQ(audited.signature, plain.signature);
  for (int step = 0; step < 7; ++step) {
    EXPECT_EQ(audited.cached[step].error.has_value(), step == 3) << step;
    EXPECT_EQ(audited.cached[step].skipped, step == 2 || step == 3 || step == 5);
  }
  EXPECT_GT(*audited.cached[3].error, 0);
}

// Decisions are made before the run, from the weights alone.
TEST(StepCache, ThePocketModelSkipsBySettingAndPlansIt) {
  Generator generator("models/pocket", options_of(DType::kF32));
  Request request;
  request.prompt = "a red ball";
  request.width = request.height = 32;
  request.frames = 5;
  request.steps = 20;
  size_t before = 0;
  for (const double threshold : {0.0, 0.05, 0.2, 1000.0}) {
    request.cache = {StepCacheKind::kTeaCache, threshold, {}};
    const Request resolved = generator.resolve(request);
    ASSERT_TRUE(resolved.cache.skipped);
    EXPECT_GE(resolved.cache.skipped->size(), before);
    before = resolved.cache.skipped->size();
    int planned = 0;
    for (const auto& step : generator.facts(resolved).steps) planned += step.skipped;
    EXPECT_EQ(planned, static_cast<int>(before));
    EXPECT_EQ(threshold == 0, before == 0) << threshold;
  }
  EXPECT_EQ(before, 18u);
}

TEST(StepCache, RefusesWhatCannotWork) {
  Generator generator(kModel, options_of(DType::kF32));
  const auto refused = [&](const Request& request, const std::string& why) {
    expect_error(ErrorKind::kUsage, why, [&] { generator.resolve(request); });
  };
  Request request = tea_cache_job({1});
  request.cache.skipped.reset();
  refused(request, "no polynomial of TeaCache is known");
  refused(tea_cache_job({3, 6}), "step 6 of 7");
  refused(tea_cache_job({0, 2}), "the first of its expert");
  request = tea_cache_job({1});
  request.steps = 9;  // the fewest of a queue
  request.method = parse_method("queue:block=1,context=1", "method");
  request.cache.kind = StepCacheKind::kFirstBlock;
  refused(request, "whose blocks are planned turns ahead");
  request.cache.kind = StepCacheKind::kTeaCache;
  for (const char* method : {"distrifusion:patches=2", "pcpp:patches=2", "pipefusion:patches=2"}) {
    request.method = parse_method(method, "method");
    refused(request, "reads the keys of the step before");
  }
  request.method = parse_method("clips:window=1,global=1,trained=3,stale=1", "method");
  refused(request, "frames of the step before");
  request.method = {};
  request.cache.kind = StepCacheKind::kNone;
  refused(request, "skipped_steps lists steps");
}

// The last stage starts a skipped step from the embedded rows.
TEST(StepCache, TeaCacheSplitsLayersWhereTheLastStageEmbeds) {
  for (const auto& [model, splits] : {std::pair<std::string, bool>{kModel, true},
                                      {"tests/golden/pipeline_flux2_klein/model", false}}) {
    const Generator generator(model, options_of(DType::kF32));
    Request request;
    request.prompt = "a";
    request.width = request.height = 64;
    request.steps = 4;
    for (const StepCacheKind kind : {StepCacheKind::kTeaCache, StepCacheKind::kFirstBlock}) {
      request.cache = {kind, 0, {}};
      const std::string why =
          refuse(along(Axis::kLayers, 2), generator.layout_limits(generator.resolve(request)));
      const bool fits = splits || kind == StepCacheKind::kFirstBlock;
      EXPECT_EQ(why.find("TeaCache needs the embedded rows") == std::string::npos, fits) << why;
      EXPECT_EQ(why.empty(), fits) << why;
    }
  }
}

TEST(StepCache, MemoryIsAsPlannedAndAsTheFormula) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Request request = tea_cache_job({2, 3});
    request.width = request.height = 128;
    const auto peak = [&](bool cached) {
      Generator generator(kModel, options_of(dtype));
      Request mine = request;
      if (!cached) mine.cache = {};
      mine = generator.resolve(mine);
      return std::pair{generator.plan(mine).parts.denoise, generator.run(mine, nullptr)};
    };
    const auto [planned, ran] = peak(true);
    const auto [planned_without, ran_without] = peak(false);
    const WanConfig config = WanConfig::from_json_file(kModel + "/transformer/config.json");
    const int64_t tokens = 2 * 8 * 8, row = config.traits().row();
    const auto formula = static_cast<int64_t>(2 * tokens * config.width() + tokens * row) * 4;
    EXPECT_NEAR(static_cast<double>(planned - planned_without), static_cast<double>(formula),
                3.0 * 128);  // three tensors, aligned
    EXPECT_NEAR(static_cast<double>(ran.stage_high_water[1] - ran_without.stage_high_water[1]),
                static_cast<double>(formula), 3.0 * 128);
  }
}

// A checkpoint is kept before a step that runs its blocks alone, so a resumed job needs nothing of
// the steps before.
TEST(StepCache, AResumedJobGivesTheFramesOfAnUninterruptedOne) {
  const std::string path =
      testing::TempDir() + "/weft_cache_" + std::to_string(getpid()) + ".checkpoint.safetensors";
  Generator generator(kModel, options_of(DType::kF32));
  const Request request = tea_cache_job({1, 2, 4});
  const RunResult whole = generator.run(request, nullptr);
  for (const auto& [after, kept_at] : {std::pair{1, 3}, {2, 3}, {3, 3}, {4, 5}, {5, 5}, {6, 6}}) {
    Stopper stopper;
    stopper.after = after;
    RunOptions options;
    options.listener = &stopper;
    options.stop = &stopper.stop;
    options.checkpoint_path = path;
    options.checkpoint_seconds = 1e9;
    EXPECT_THROW(generator.run(request, nullptr, options), Error);
    auto kept = std::make_shared<Checkpoint>(read_checkpoint(path));
    EXPECT_EQ(kept->step, kept_at) << after;
    Stopper none;
    RunOptions going_on;
    going_on.listener = &none;
    going_on.stop = &none.stop;
    going_on.resume = kept;
    const RunResult resumed = generator.run(request, nullptr, going_on);
    EXPECT_EQ(resumed.signature, whole.signature) << after;
    EXPECT_EQ(resumed.framehash, whole.framehash) << after;
    remove_checkpoints(path);
  }
}

// Whole jobs of a real model: guidance branches and stages give one rank's bits; layouts that split
// tokens or widths differ by the order of their sums, as they do without a cache.
TEST(StepCache, EveryLayoutDecidesAlikeAndGivesOneRanksLatents) {
  const Request request = tea_cache_job({1, 2, 4});
  const auto run = [&](RankPlacement placement) {
    Generator generator(kModel, options_of(DType::kF32), std::move(placement));
    LatentTap tap;
    RunOptions options;
    options.tap = &tap;
    const RunResult result = generator.run(request, nullptr, options);
    return std::pair{std::move(tap.latents), result};
  };
  const auto [whole, alone] = run(RankPlacement());
  const Generator generator(kModel, options_of(DType::kF32));
  const LayoutLimits limits = generator.layout_limits(generator.resolve(request));
  for (int ranks = 2; ranks <= 4; ++ranks)
    for (Layout layout : legal_layouts(ranks, limits)) {
      if (layout[Axis::kData] > 1) continue;
      layout.text_ranks = 1;  // a split encoder adds up in another order
      std::vector<float> latent;
      RunResult result;
      run_ranks(ranks, [&](Communicator& world) {
        auto [mine, ran] = run(RankPlacement::of(world, layout));
        if (world.rank() != 0) return;
        latent = std::move(mine);
        result = std::move(ran);
      });
      const bool keeps_sums = layout[Axis::kCfg] * layout[Axis::kLayers] == ranks;
      if (keeps_sums)
        EXPECT_EQ(latent, whole) << to_string(layout);
      else
        EXPECT_LE(rel_l2(latent, whole), 1e-5) << to_string(layout);
      ASSERT_EQ(result.cached.size(), alone.cached.size());
      for (size_t step = 0; step < result.cached.size(); ++step) {
        EXPECT_EQ(result.cached[step].skipped, alone.cached[step].skipped);
        EXPECT_NEAR(*result.cached[step].output_change, *alone.cached[step].output_change, 1e-4);
      }
    }
}

// 41 frames are eleven latent frames: blocks of 2 + 1 and four times 2.
Request cached_queue(std::vector<int> skipped) {
  Request request = tea_cache_job(std::move(skipped));
  request.frames = 41;
  request.steps = 9;
  request.method = parse_method("queue:block=2,context=1", "method");
  return request;
}

TEST(QueueStepCache, StagesAndBranchesChangeNoBit) {
  const Request request = cached_queue({2, 3, 5, 7});
  Generator generator(kModel, options_of(DType::kF32));
  const RunResult one = generator.run(request, nullptr);
  const RunResult plain = generator.run(cached_queue({}), nullptr);
  EXPECT_NE(one.framehash, plain.framehash);
  ASSERT_EQ(one.cached.size(), 9u);
  for (int step = 0; step < 9; ++step) {
    EXPECT_EQ(one.cached[step].skipped, step == 2 || step == 3 || step == 5 || step == 7);
    EXPECT_FALSE(one.cached[step].output_change);
    EXPECT_EQ(one.cached[step].embedding_change > 0, step > 0);
  }
  const LayoutLimits limits = generator.layout_limits(generator.resolve(request));
  for (const auto& [ranks, text] : {std::pair{2, "layers=2"},
                                    {2, "layers=2,decode_rank=1"},
                                    {2, "cfg=2"},
                                    {4, "cfg=2,layers=2"}}) {
    const Layout layout = parse_layout(text, ranks, limits);
    run_ranks(ranks, [&](Communicator& world) {
      Generator rank(kModel, options_of(DType::kF32), RankPlacement::of(world, layout));
      const RunResult result = rank.run(request, nullptr);
      if (world.rank() != 0) return;
      EXPECT_EQ(result.framehash, one.framehash) << to_string(layout);
      EXPECT_EQ(result.cached.size(), 9u);
    });
  }
}

TEST(QueueStepCache, ThresholdZeroGivesTheBitsOfNoCache) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Generator generator(kModel, options_of(dtype));
    Request request = cached_queue({});
    request.cache = {StepCacheKind::kTeaCache, 0, {}};
    const RunResult cached = generator.run(request, nullptr);
    EXPECT_EQ(cached.cached.size(), 9u);
    request.cache = {};
    const RunResult plain = generator.run(request, nullptr);
    EXPECT_EQ(cached.framehash, plain.framehash);
    EXPECT_EQ(cached.memory_high_water, plain.memory_high_water);
  }
}

// The decision is that of the same job without the queue: it reads the timesteps alone.
TEST(QueueStepCache, ThePocketModelSkipsTheStepsOfAnOrdinaryJob) {
  Generator generator("models/pocket", options_of(DType::kF32));
  Request request;
  request.prompt = "a red ball";
  request.width = request.height = 32;
  request.frames = 129;
  request.steps = 20;
  request.cache = {StepCacheKind::kTeaCache, 0.1, {}};
  request.method = parse_method("queue", "method");
  const std::vector<int> skipped = *generator.resolve(request).cache.skipped;
  EXPECT_GT(skipped.size(), 3u);
  request.method = parse_method("full", "method");
  EXPECT_EQ(*generator.resolve(request).cache.skipped, skipped);
}

// The plan is that of mpi_plan_test's bounds, and covers what the cache adds to it.
TEST(QueueStepCache, MemoryIsAsPlanned) {
  for (const int64_t frames : {9, 17, 41, 121}) {
    const auto sizes = [&](std::vector<int> skipped) {
      Request request = cached_queue(std::move(skipped));
      request.width = request.height = 128;
      request.frames = frames;
      const size_t live = tensor_bytes_live();
      Generator generator(kModel, options_of(DType::kF32));
      request = generator.resolve(request);
      const auto planned = static_cast<double>(generator.plan(request).denoise);
      const size_t taken = generator.run(request, nullptr).stage_high_water[1] - live;
      return std::pair{planned, static_cast<double>(taken)};
    };
    const auto [planned_without, taken_without] = sizes({});
    for (const std::vector<int>& skipped :
         {std::vector<int>{4}, {1, 2, 3, 5}, {2, 3, 4, 5, 6, 7}}) {
      const auto [planned, taken] = sizes(skipped);
      const double more = planned - planned_without, took = taken - taken_without;
      EXPECT_GE(planned, 0.99 * taken) << frames << " frames, " << skipped.size() << " skipped";
      EXPECT_GE(more, 0.9 * took) << frames << " frames, " << skipped.size() << " skipped";
      EXPECT_LE(planned, 1.05 * taken) << frames << " frames, " << skipped.size() << " skipped";
    }
  }
}

struct Watcher final : ProgressListener {
  std::vector<std::string> warnings;
  int total = 0, steps = 0;
  void progress(const Progress& p) override {
    if (p.stage != "denoise") return;
    total = p.total;
    steps = p.step;
  }
  void warning(const std::string& line) override { warnings.push_back(line); }
};

// Its checkpoints would lack what the skipped steps reuse, which it says beforehand.
TEST(QueueStepCache, AStoppedJobBeginsAnewAndSaysSo) {
  const std::string path = testing::TempDir() + "/weft_queue_cache_" + std::to_string(getpid()) +
                           ".checkpoint.safetensors";
  Generator generator(kModel, options_of(DType::kF32));
  const std::atomic<bool> stop{false};
  Watcher watcher;
  RunOptions options;
  options.listener = &watcher;
  options.stop = &stop;
  options.checkpoint_path = path;
  options.checkpoint_seconds = 0;
  EXPECT_EQ(generator.run(cached_queue({2, 3}), nullptr, options).checkpoints, 0);
  ASSERT_EQ(watcher.warnings.size(), 1u);
  EXPECT_TRUE(contains(watcher.warnings[0], "begins anew"));
  EXPECT_EQ(watcher.total, 5 * 7 * 2);  // forwards: blocks, computed steps, branches
  EXPECT_EQ(watcher.steps, watcher.total);
  EXPECT_GT(generator.run(cached_queue({}), nullptr, options).checkpoints, 0);
  remove_checkpoints(path);
}

TEST(QueueStepCache, AnAuditIsRefused) {
  Generator generator(kModel, options_of(DType::kF32));
  RunOptions options;
  options.cache_audit = 2;
  expect_error(ErrorKind::kUsage, "--cache-audit is 2", [&] {
    generator.run(cached_queue({2, 3}), nullptr, options);
  });
}

}  // namespace
}  // namespace weft::test
