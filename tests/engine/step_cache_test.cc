// Step caches: which steps are skipped, and that a skipped step has the same bits under every
// layout, those of a plain loop that skips it.
#include "engine/methods/step_cache.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <mutex>

#include "engine/sampling/guidance.h"
#include "engine/schedules/denoiser.h"
#include "kernels/copy.h"
#include "models/wan/transformer.h"
#include "parallel/sequence_map.h"
#include "parallel/transport/local.h"
#include "tests/engine/small_job.h"
#include "tests/engine/toy_values.h"
#include "tests/models/transformer_testing.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

std::vector<EmbeddedStep> embedded(const std::vector<float>& values, int second_from = 1000) {
  std::vector<EmbeddedStep> steps;
  for (size_t i = 0; i < values.size(); ++i)
    steps.push_back({static_cast<int>(i) >= second_from, {values[i], -values[i]}});
  return steps;
}

TEST(TeaCache, AddsUpChangesSinceTheLastComputedStep) {
  // Changes: 0.5, 0.5, 1/3, 0.25, 0.2 of the step before.
  const std::vector<EmbeddedStep> steps = embedded({2, 3, 1.5, 2, 2.5, 3});
  const std::vector<double> changes = embedding_changes(steps);
  EXPECT_EQ(changes[0], 0);
  EXPECT_NEAR(changes[3], 1.0 / 3, 1e-12);
  const double twice[] = {2, 0};  // 2 x
  EXPECT_EQ(teacache_skips(steps, twice, 0), std::vector<int>{});
  EXPECT_EQ(teacache_skips(steps, twice, 1.0), (std::vector<int>{3}));        // 1, 1, 0.67 | 1.17
  EXPECT_EQ(teacache_skips(steps, twice, 1.2), (std::vector<int>{1, 3, 4}));  // 1 | 2 | .67, 1.17
  EXPECT_EQ(teacache_skips(steps, twice, INFINITY), (std::vector<int>{1, 2, 3, 4}));
  const double negative[] = {-1, 0};  // counts as 0
  EXPECT_EQ(teacache_skips(steps, negative, 1e-9), (std::vector<int>{1, 2, 3, 4}));
  EXPECT_EQ(teacache_skips(steps, negative, 0), std::vector<int>{});
}

TEST(TeaCache, ComputesTheFirstStepOfEveryExpertAndTheLast) {
  const double one[] = {1, 0};
  EXPECT_EQ(teacache_skips(embedded({2, 2, 2, 2, 2, 2, 2}, 3), one, 1),
            (std::vector<int>{1, 2, 4, 5}));
  // The change between two experts does not count: step 4 begins from 0.
  EXPECT_EQ(teacache_skips(embedded({1, 1, 1, 100, 100, 100}, 3), one, 0.5),
            (std::vector<int>{1, 2, 4}));
  for (const int steps : {1, 2})
    EXPECT_EQ(teacache_skips(embedded(std::vector<float>(steps, 1)), one, 1), std::vector<int>{});
}

TEST(TeaCache, AHigherThresholdNeverComputesMore) {
  const double polynomial[] = {4, -3, 0.5};
  for (int seed = 1; seed <= 20; ++seed) {
    std::vector<float> values;
    for (int i = 0; i < 40; ++i)
      values.push_back(1 + static_cast<float>((i * i * seed * 7919) % 1009) / 1009);
    size_t before = 0;
    for (double threshold = 0; threshold < 3; threshold += 0.01) {
      const size_t skips = teacache_skips(embedded(values), polynomial, threshold).size();
      EXPECT_GE(skips, before) << seed << " " << threshold;
      before = skips;
    }
    EXPECT_GT(before, 0u);
  }
}

TEST(StepCacheText, IsReadAndWritten) {
  for (const char* text : {"none", "teacache:0", "teacache:0.1", "teacache:1000"})
    EXPECT_EQ(to_string(parse_step_cache(text, "--cache")), text);
  for (const char* text : {"", "tea", "none:1", "teacache", "teacache:", "teacache:-1",
                           "teacache:x", "teacache:1001", "teacache:0.1,3"}) {
    const std::string what =
        thrown_error([&] { parse_step_cache(text, "--cache"); }, ErrorKind::kUsage);
    EXPECT_TRUE(contains(what, "--cache"));
    EXPECT_TRUE(contains(what, "legal"));
  }
  EXPECT_EQ(parse_skipped_steps("3,4,6", "x"), (std::vector<int>{3, 4, 6}));
  EXPECT_EQ(parse_skipped_steps("", "x"), std::vector<int>{});
  for (const char* text : {"0", "3,3", "4,3", "a", "1000"})
    EXPECT_THROW(parse_skipped_steps(text, "x"), Error) << text;
}

// The vectors from the file are those that a forward computes.
TEST(TimeVectors, AreThoseOfAForward) {
  const TensorFile file = TensorFile::open(kModel + "/transformer");
  const WanConfig config = WanConfig::from_json_file(kModel + "/transformer/config.json");
  Stream stream = Stream::cpu(1);
  Arena arena;
  const WanTransformer wan = WanTransformer::load(stream, file, config);
  const float times[] = {999, 500.5, 3};
  const auto vectors = wan_time_vectors(config, file, times);
  ASSERT_EQ(vectors.size(), 3u);
  const std::array<int64_t, 4> latent{config.in_channels, 1, 4, 4};
  const Tensor in(DType::kF32, latent), out(DType::kF32, latent);
  const Tensor embeds(DType::kF32, {3, config.text_dim});
  for (int i = 0; i < 3; ++i) {
    Recorder seen;
    SerialSeams seams;
    Context context = seams.context(stream, arena, Pass{}, TokenRanges::all(4), &seen);
    const WanText text = prepare_text(wan, context, embeds, 5);
    const TimeSegment time{{0, 4}, times[i]};
    forward(wan, context, BlockRange::all(config.layers), in, {&time, 1}, text,
            rope_of(wan, {1, 2, 2}), out);
    const TensorView temb = seen.seen.at("temb");
    ASSERT_EQ(temb.count(), static_cast<int64_t>(vectors[i].size()));
    for (int64_t k = 0; k < temb.count(); ++k)
      EXPECT_NEAR(temb.as<float>()[k], vectors[i][k], 1e-5) << times[i] << " " << k;
  }
}

// The embedding and the head alone are those of a whole forward.
TEST(EmptyBlocks, AreTheEndsOfAForward) {
  const TensorFile file = TensorFile::open(kModel + "/transformer");
  const WanConfig config = WanConfig::from_json_file(kModel + "/transformer/config.json");
  Stream stream = Stream::cpu(1);
  Arena arena;
  const int layers = config.layers;
  TransformerLoad last;
  last.blocks = {layers - 1, layers, layers};
  const WanTransformer whole = WanTransformer::load(stream, file, config),
                       stage = WanTransformer::load(stream, file, config, last);
  Tensor in(DType::kF32, {config.in_channels, 1, 4, 4});
  for (int64_t i = 0; i < in.count(); ++i) in.as<float>()[i] = std::sin(static_cast<float>(i));
  const Tensor out(DType::kF32, in.view().shape()), head(DType::kF32, in.view().shape());
  const Tensor embeds(DType::kF32, {3, config.text_dim});
  const TimeSegment time{{0, 4}, 700};
  Recorder seen;
  SerialSeams seams;
  Context context = seams.context(stream, arena, Pass{}, TokenRanges::all(4), &seen);
  const WanText text = prepare_text(whole, context, embeds, 5);
  const Rope rope = rope_of(whole, {1, 2, 2});
  forward(whole, context, BlockRange::all(layers), in, {&time, 1}, text, rope, out);
  const Tensor embedded(DType::kF32, {4, config.width()});
  context.observer = nullptr;
  const WanText stage_text = prepare_text(stage, context, embeds, 5);
  forward(stage, context, {0, 0, layers}, in, {&time, 1}, stage_text, rope, embedded);
  EXPECT_EQ(std::memcmp(embedded.view().data, seen.seen.at("patch_embedding").view().data,
                        embedded.view().bytes()),
            0);
  forward(stage, context, {layers, layers, layers},
          seen.seen.at("blocks." + std::to_string(layers - 1)), {&time, 1}, stage_text, rope, head);
  EXPECT_EQ(std::memcmp(head.view().data, out.view().data, out.view().bytes()), 0);
}

using Toy = ToyValues;

constexpr int kSteps = 8;

Request toy_request(double guidance, const std::vector<int>& skipped) {
  Request request;
  request.guidance_scale = request.guidance_scale_2 = guidance;
  request.cache = {StepCacheKind::kTeaCache, 0.1, skipped};
  return request;
}

float prompt_of(int branch) { return branch ? -0.5f : 0.5f; }
bool is_in(const std::vector<int>& steps, int step) { return std::ranges::count(steps, step) > 0; }

// One loop over the whole latent, without rows, plans and ranks. `error` receives the relative L1
// error of the reused velocity of the positive prompt in every skipped step.
Tensor cached_reference(double guidance, const std::vector<int>& skipped,
                        std::vector<double>& error) {
  Stream stream = Stream::cpu(1);
  Arena arena;
  const Sampler steps = Toy::sampler(kSteps);
  Tensor x = Toy::noise(),
         velocities[2] = {Tensor(DType::kF32, Toy::kShape), Tensor(DType::kF32, Toy::kShape)};
  std::vector<float> added[2];
  for (auto& of_branch : added) of_branch.resize(x.count());
  SamplerState state(x.count());
  error.assign(kSteps, 0);
  for (int step = 0; step < kSteps; ++step) {
    const float timestep = steps.timesteps()[step];
    for (int branch = 0; branch < 2; ++branch) {
      double wrong = 0, size = 0;
      for (int64_t i = 0; i < x.count(); ++i) {
        const float first = Toy::embed(x.as<float>()[i]);
        float last = first;
        for (int b = 0; b < Toy::kBlocks; ++b) last = Toy::block(last, prompt_of(branch), timestep);
        const float right = Toy::head(last, timestep);
        if (is_in(skipped, step))
          last = first + added[branch][i];
        else
          added[branch][i] = last - first;
        const float velocity = Toy::head(last, timestep);
        velocities[branch].as<float>()[i] = velocity;
        wrong += std::abs(double{velocity} - right);
        size += std::abs(double{right});
      }
      if (branch == 0) error[step] = wrong / size;
    }
    guide(stream, arena, {}, guidance, velocities[1], velocities[0]);
    steps.step(stream, arena, step, velocities[0], x, state);
  }
  return x;
}

struct ObservedCache {
  Tensor latent{};
  std::vector<Change> changes{}, errors{};
};

ObservedCache denoise_cached(const Layout& layout, double guidance, const std::vector<int>& skipped,
                             int audit = 0, const LocalOptions& options = {}) {
  ObservedCache seen;
  std::mutex mutex;
  const JobFacts facts{.request = toy_request(guidance, skipped),
                       .sampler = Toy::sampler(kSteps),
                       .window = Toy::kShape,
                       .guidance = {guidance}};
  run_ranks(
      layout.ranks(),
      [&](Communicator& world) {
        const Tensor noise = Toy::noise();
        ToyRank toy(world, layout, facts, Toy::kTokens, noise);
        for (size_t i = 0; i < skipped.size(); ++i) {
          toy.config.steps[skipped[i]].skipped = true;
          toy.config.steps[skipped[i]].audited = audit > 0 && (i + 1) % audit == 0;
        }
        toy.keep_latent(seen.latent, mutex);
        Denoiser denoiser = toy.denoiser();
        denoiser.run(toy.config, toy.job);
        if (world.rank() == 0) {
          seen.changes = denoiser.changes();
          seen.errors = denoiser.errors();
        }
      },
      options);
  return seen;
}

std::vector<Layout> toy_layouts(int ranks, bool guided) {
  return legal_layouts(
      ranks,
      {.heads = 6, .layers = Toy::kBlocks, .tokens = Toy::kTokens, .ffn = 6, .guided = guided});
}

TEST(StepCache, GivesTheLatentOfOneLoopUnderEveryLayout) {
  const std::vector<int> skips[] = {{}, {1, 2, 4, 6}, {1, 2, 3, 4, 5, 6}};
  for (const double guidance : {1.0, 4.0})
    for (const std::vector<int>& skipped : skips) {
      std::vector<double> error;
      const Tensor expected = cached_reference(guidance, skipped, error);
      for (int ranks = 1; ranks <= 4; ++ranks)
        for (const Layout& layout : toy_layouts(ranks, guidance > 1))
          for (const int audit : {0, 1, 2}) {
            const ObservedCache seen = denoise_cached(layout, guidance, skipped, audit);
            EXPECT_TRUE(same_bits(seen.latent, expected))
                << to_string(layout) << " " << skipped.size();
            ASSERT_EQ(seen.errors.size(), size_t{kSteps});
            for (int step = 0; step < kSteps; ++step) {
              const auto at = std::ranges::find(skipped, step) - skipped.begin();
              const bool audited = audit > 0 && at < std::ssize(skipped) && (at + 1) % audit == 0;
              EXPECT_NEAR(seen.errors[step].relative(), audited ? error[step] : 0, 1e-6)
                  << to_string(layout) << " step " << step;
              EXPECT_EQ(seen.changes[step].size > 0, step > 0);
            }
          }
    }
}

TEST(StepCache, DelaysChangeNoBit) {
  const std::vector<int> skipped{1, 2, 4, 6};
  std::vector<double> error;
  const Tensor expected = cached_reference(4, skipped, error);
  for (const Layout& layout : toy_layouts(4, true))
    for (uint64_t seed = 1; seed <= 4; ++seed)
      EXPECT_TRUE(same_bits(
          denoise_cached(layout, 4, skipped, static_cast<int>(seed % 3),
                         {.rendezvous = seed % 2 == 1, .delay_seed = seed, .max_delay_us = 30})
              .latent,
          expected))
          << to_string(layout) << " seed " << seed;
}

// The steps that every rank skips with the cache first-block, where `faulty` alters what it
// measures.
std::vector<std::vector<int>> first_block_skips(const Layout& layout, double threshold, int faulty,
                                                const std::function<void(Change&)>& alter,
                                                const LocalOptions& options = {}) {
  std::vector<std::vector<int>> skipped(layout.ranks());
  JobFacts facts{.request = toy_request(4, {}),
                 .sampler = Toy::sampler(kSteps),
                 .window = Toy::kShape,
                 .guidance = {4}};
  facts.request.cache = {StepCacheKind::kFirstBlock, threshold, {}};
  run_ranks(
      layout.ranks(),
      [&](Communicator& world) {
        const Tensor noise = Toy::noise();
        ToyRank toy(world, layout, facts, Toy::kTokens, noise);
        toy.config.first_block_bytes =
            toy.experts.traits().width * static_cast<int64_t>(sizeof(float));
        toy.host.on_first_block = [&](const Pass&, Change& change) {
          if (world.rank() == faulty) alter(change);
        };
        Denoiser denoiser = toy.denoiser();
        denoiser.run(toy.config, toy.job);
        skipped[world.rank()] = denoiser.skipped();
      },
      options);
  return skipped;
}

// Law L-K2: what one rank measures changes the decision of all ranks, or of none where it measures
// nothing. Large, negative and undefined values must neither part the ranks nor stop them.
TEST(FirstBlockDecision, OneRanksFaultIsEveryRanksDecision) {
  const double threshold = 0.05;
  const std::vector<int> expected = first_block_skips({}, threshold, -1, [](Change&) {}).front();
  EXPECT_GT(expected.size(), 0u);
  EXPECT_LT(std::ssize(expected), kSteps - 2);
  const std::vector<int> all{1, 2, 3, 4, 5, 6};
  const std::pair<float, std::vector<int>> faults[] = {{1e9f, {}}, {-1e9f, all}, {NAN, {}}};
  int everyone = 0;
  for (int ranks = 2; ranks <= 4; ++ranks)
    for (const Layout& layout : toy_layouts(ranks, true)) {
      if (layout[Axis::kData] > 1) continue;
      for (int faulty = 0; faulty < ranks; ++faulty)
        for (const auto& [value, decided] : faults) {
          bool measures = false;
          const auto skipped = first_block_skips(
              layout, threshold, faulty,
              [&](Change& change) {
                measures = true;
                change.change = value;
              },
              {.delay_seed = static_cast<uint64_t>(faulty + 1), .max_delay_us = 20});
          // A small change of one branch leaves the decision to the other branch's.
          const bool alone = value < 0 && layout[Axis::kCfg] == 2;
          for (int rank = 0; rank < ranks; ++rank)
            EXPECT_EQ(skipped[rank], !measures ? expected
                                     : alone   ? skipped[0]
                                               : decided)
                << to_string(layout) << " rank " << rank << ", " << value << " on rank " << faulty;
          everyone += measures;
        }
    }
  EXPECT_GT(everyone, 30);
}

}  // namespace
}  // namespace weft::test
