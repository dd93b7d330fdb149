// Pictures from reference pictures of any size: what they condition, layouts and what these split,
// displaced patches, memory, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>

#include "engine/conditions/picture_conditions.h"
#include "engine/memory/estimate.h"
#include "engine/memory/memory_meter.h"
#include "io/picture/picture_fit.h"
#include "kernels/meter.h"
#include "tests/engine/delivered_job.h"
#include "tests/engine/planned_job.h"
#include "tests/parallel/byte_formulas.h"

namespace weft::test {
namespace {

// Without guidance, and with it.
const std::string kEditModel = "tests/golden/pipeline_flux2_klein_edit_two_large/model",
                  kGuidedModel = "tests/golden/pipeline_flux2_klein_base/model";

GivenPicture seen(int64_t width, int64_t height, float phase) {
  Tensor out(DType::kF32, {3, height, width});
  for (int64_t i = 0; i < out.count(); ++i)
    out.as<float>()[i] = 0.5f + 0.5f * std::sin(0.37f * static_cast<float>(i) + phase);
  return {.path = "a.png", .pixels = std::make_shared<const Tensor>(std::move(out))};
}

// 3 x 4 tokens beside two pictures of 4 x 5 and 7 x 4: rows of odd counts.
Request edit(int steps = 3) {
  Request request;
  request.prompt = "make the ball blue";
  request.width = 64;
  request.height = 48;
  request.steps = steps;
  request.seed = 7;
  request.references = {seen(90, 70, 0), seen(66, 125, 1)};
  return request;
}

std::vector<float> edited(const Request& request, const Layout& layout = {},
                          const std::string& model = kEditModel) {
  return deliver(request, layout, {}, {}, options_of(DType::kF32), model).latents;
}

// The layouts of two to four ranks that are legal for a job of a model.
std::vector<Layout> layouts_of(const Request& request, const std::string& model) {
  const Generator generator(model, options_of(DType::kF32));
  const LayoutLimits limits = generator.layout_limits(generator.resolve(request));
  std::vector<Layout> layouts;
  for (const int ranks : {2, 3, 4})
    for (const Layout& layout : legal_layouts(ranks, limits))
      if (layout[Axis::kData] == 1) layouts.push_back(layout);
  return layouts;
}

TEST(References, EachOfThemAndTheirOrderCount) {
  const Request both = edit();
  const std::vector<float> latents = edited(both);
  Request other = both;
  std::swap(other.references[0], other.references[1]);
  EXPECT_GT(rel_l2(edited(other), latents), 1e-3);
  other.references.pop_back();
  EXPECT_GT(rel_l2(edited(other), latents), 1e-3);
  other.references.clear();
  EXPECT_GT(rel_l2(edited(other), latents), 1e-3);
  // The border that is cut off is not seen.
  other = both;
  const auto border =
      std::make_shared<Tensor>(DType::kF32, both.references[0].pixels->view().shape());
  std::copy_n(both.references[0].pixels->as<float>(), border->count(), border->as<float>());
  border->as<float>()[0] = 1 - border->as<float>()[0];
  other.references[0].pixels = border;
  EXPECT_EQ(edited(other), latents);
  border->as<float>()[90 * 3 + 5] = 1 - border->as<float>()[90 * 3 + 5];
  EXPECT_NE(edited(other), latents);
}

TEST(References, EveryLayoutGivesTheLatentsOfOneRank) {
  for (const std::string& model : {kEditModel, kGuidedModel}) {
    const Request request = edit();
    const std::vector<float> one = edited(request, {}, model);
    const std::vector<Layout> layouts = layouts_of(request, model);
    for (const Layout& layout : layouts)
      EXPECT_LE(rel_l2(edited(request, layout, model), one), 2e-5) << model << to_string(layout);
    EXPECT_GE(layouts.size(), 10u);
  }
}

// 16 rows of one reference over 18 ranks, all of which have tokens.
TEST(References, ARankMayHaveNoneOfTheirRows) {
  Request request = edit(1);
  request.width = 96;
  request.references = {seen(64, 64, 0)};
  EXPECT_LE(rel_l2(edited(request, along(Axis::kRing, 18)), edited(request)), 2e-5);
}

// Counts the work of the linears of all blocks on one thread.
struct BlockFlop final : Meter {
  std::vector<Zone> zones;
  double flop = 0;
  bool runs() const override { return true; }
  void begin(Zone zone, int, const char*, double) override { zones.push_back(zone); }
  void end() override { zones.pop_back(); }
  void op(const Work& work, const std::function<void()>& run) override {
    if (work.family == OpFamily::kLinear && std::ranges::count(zones, Zone::kBlock) > 0)
      flop += work.flop;
    run();
  }
};

// By rank.
std::vector<double> block_flop(const Request& request, const Layout& layout,
                               const std::string& model) {
  std::vector<double> flop(layout.ranks());
  run_ranks(layout.ranks(), [&](Communicator& world) {
    BlockFlop meter;
    const MeterScope scope(meter);
    GeneratorOptions options = options_of(DType::kF32);
    options.ops = &metered_ops();
    Generator(model, options, RankPlacement::of(world, layout)).run(request, nullptr, {});
    flop[world.rank()] = meter.flop;
  });
  return flop;
}

// The work of the references' rows, by rank.
std::vector<double> reference_flop(const Layout& layout, const std::string& model) {
  const Request request = edit(1);
  Request without = request;
  without.references.clear();
  std::vector<double> flop = block_flop(request, layout, model);
  const std::vector<double> less = block_flop(without, layout, model);
  for (size_t rank = 0; rank < flop.size(); ++rank) flop[rank] -= less[rank];
  return flop;
}

TEST(References, TheirRowsAreComputedOnce) {
  for (const std::string& model : {kEditModel, kGuidedModel}) {
    const double once = reference_flop({}, model)[0];
    EXPECT_GT(once, 0);
    for (const Layout& layout : layouts_of(edit(), model)) {
      const std::vector<double> flop = reference_flop(layout, model);
      double sum = 0;
      for (const double each : flop) sum += each;
      EXPECT_NEAR(sum / once, 1, 1e-9) << model << " " << to_string(layout);
      if (layout.sequence() < layout.ranks()) continue;
      // 48 rows
      for (int rank = 0; rank < layout.ranks(); ++rank)
        EXPECT_NEAR(flop[rank] / once * 48,
                    static_cast<double>(
                        partition(48, layout.ranks(), Mesh(layout).sequence_index(rank)).size()),
                    1e-6)
            << to_string(layout) << " rank " << rank;
    }
  }
}

TEST(References, RanksSendTheBytesOfTheFormulas) {
  const Request request = edit(2);
  int layouts = 0;
  for (Layout layout : layouts_of(request, kEditModel)) {
    ++layouts;
    layout.text_ranks = layout.vae_ranks = 1;
    run_ranks(layout.ranks(), [&](Communicator& world) {
      Generator generator(kEditModel, options_of(DType::kF32), RankPlacement::of(world, layout));
      const JobFacts facts = generator.facts(generator.resolve(request));
      generator.run(request, nullptr, {});
      const TransformerTraits& traits = generator.model()->directory.expert(0).traits();
      const Mesh mesh(layout);
      const int rank = world.rank(), stage = mesh.at(Axis::kLayers, rank);
      const HeadPart heads = partition_heads(traits.heads, traits.key_heads(),
                                             layout[Axis::kTensor], mesh.at(Axis::kTensor, rank));
      const SequenceMap tokens =
          SequenceMap::contiguous(3 * 4, layout.sequence()).with_beside(4 * 5 + 7 * 4);
      const int64_t blocks = stage_blocks(traits.blocks, layout[Axis::kLayers], stage).end -
                             stage_blocks(traits.blocks, layout[Axis::kLayers], stage).begin;
      const int64_t text = facts.prompt_rows[0];
      const auto sent = [&](std::initializer_list<Payload> kinds) {
        int64_t bytes = 0;
        for (const Payload kind : kinds)
          bytes += world.counters().sent[static_cast<size_t>(kind)].bytes;
        return bytes;
      };
      EXPECT_EQ(sent({Payload::kHeadsIn, Payload::kHeadsOut, Payload::kKeyValue, Payload::kQuery,
                      Payload::kState}),
                request.steps * blocks *
                    mixer_sent_bytes({.mesh = mesh, .rank = rank, .tokens = tokens},
                                     {.heads = heads.q.size(),
                                      .kv_heads = heads.kv.size(),
                                      .head_dim = traits.head_dim,
                                      .replicated = text}))
          << to_string(layout) << " rank " << rank;
      const int64_t rows = tokens.rows(mesh.sequence_index(rank)) + text;
      EXPECT_EQ(sent({Payload::kHidden}),
                stage + 1 == layout[Axis::kLayers] ? 0 : request.steps * rows * traits.width * 4)
          << to_string(layout) << " rank " << rank;
    });
  }
  EXPECT_GE(layouts, 10);
}

// The picture of 12 tokens is small beside references of 535 rows.
TEST(References, PlansOfMemoryAndTimeShrinkWithTheRanks) {
  Request request = edit(2);
  request.references = {seen(320, 272, 0), seen(144, 144, 1), seen(96, 304, 2)};
  const auto denoise = [&](const Layout& layout, const Request& asked) {
    uint64_t most = 0;
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      const Generator generator(kEditModel, options_of(DType::kF32), RankPlacement(layout, rank));
      const MemoryPlan plan = generator.plan(generator.resolve(asked));
      most = std::max(most, plan.denoise);
    }
    return static_cast<double>(most);
  };
  PlannedJob job = planned(kEditModel, kFast, 1, "auto", 2);
  job.request = Generator(job.model, job.options).resolve(request);
  job.machine.device.flop_per_s.fill(1e9);  // messages are short beside the work
  const double time = forecast_whole(job, {}).stage("denoise");
  Request without = request;
  without.references.clear();
  const double memory = denoise({}, request) - denoise({}, without);
  EXPECT_GT(memory, 0);
  for (const Axis axis : {Axis::kUlysses, Axis::kRing, Axis::kTokenRing}) {
    const Layout layout = along(axis, 2);
    EXPECT_LT(denoise(layout, request) - denoise(layout, without), 0.8 * memory)
        << to_string(layout);
    EXPECT_LT(forecast_whole(job, layout).stage("denoise"), 0.7 * time) << to_string(layout);
  }
}

// Displaced patches are exact where the warm-up lasts for all steps. Otherwise neither delays nor
// the number of ranks changes anything. A rank holds one patch, but for PipeFusion.
TEST(References, DisplacedPatchesKeepTheirLaws) {
  const std::vector<float> full = edited(edit(9));
  for (const std::string name :
       {"distrifusion:patches=3", "pcpp:patches=3,window=1", "pipefusion:patches=3"}) {
    Request request = edit(9);
    const bool staged = name.starts_with("pipefusion");
    const Layout layout = along(staged ? Axis::kLayers : Axis::kPatch, staged ? 2 : 3);
    request.method = parse_method(name + ",warmup=9", "method");
    EXPECT_LE(rel_l2(edited(request, layout), full), 1e-5) << name;
    request.method = parse_method(name + ",warmup=1", "method");
    const std::vector<float> stale = edited(request, layout);
    EXPECT_GT(rel_l2(stale, full), 1e-5) << name;
    EXPECT_EQ(deliver(request, layout, {}, {.delay_seed = 5, .max_delay_us = 200},
                      options_of(DType::kF32), kEditModel)
                  .latents,
              stale)
        << name;
    if (staged) {
      EXPECT_LE(rel_l2(edited(request), stale), 1e-5) << name;
    }
  }
}

TEST(References, MemoryIsAsPlanned) {
  for (const std::string& model : {kEditModel, kGuidedModel})
    for (const Residency residency :
         {Residency::kAll, Residency::kStaged, Residency::kSequential}) {
      Request request = edit(2);
      request.references = {seen(320, 272, 0), seen(144, 144, 1), seen(96, 304, 2)};
      GeneratorOptions options = options_of(DType::kF32);
      Generator planner(model, options);
      const Request resolved = planner.resolve(request);
      options.memory_limit = memory_under(residency, planner.plan(resolved).parts, 0).high_water;
      const size_t live = tensor_bytes_live();
      Generator generator(model, options);
      const MemoryPlan plan = generator.plan(resolved);
      const RunResult result = generator.run(resolved, nullptr, {});
      const auto near = [&](uint64_t planned, uint64_t taken, const char* stage) {
        EXPECT_NEAR(static_cast<double>(planned) / static_cast<double>(taken - live), 1, 0.05)
            << model << " " << to_string(residency) << " " << stage << " " << plan.to_string();
      };
      near(plan.high_water, result.memory_high_water, "all");
      near(plan.denoise, result.stage_high_water[MemoryMeter::kDenoise], "denoise");
      near(plan.encode_image, result.stage_high_water[MemoryMeter::kEncodeImage], "encode_image");
      // The steps hold the rows of references.
      Request without = resolved;
      without.references.clear();
      EXPECT_LT(planner.plan(without).denoise, planner.plan(resolved).denoise);
    }
}

// A first-block cache compares what the rows of references leave of block 0, too.
TEST(References, AFirstBlockCacheDecidesAsOnOneRank) {
  Request request = edit(8);
  const auto drawn = [&](const Layout& layout) {
    return deliver(request, layout, {}, {}, options_of(DType::kF32), kEditModel);
  };
  Delivered one;
  std::vector<int> skipped;
  for (double threshold = 0.01; skipped.size() < 2 && threshold < 100; threshold *= 1.3) {
    request.cache = {StepCacheKind::kFirstBlock, threshold, {}};
    one = drawn({});
    skipped = *one.result.request.cache.skipped;
  }
  ASSERT_GE(skipped.size(), 2u);
  EXPECT_LT(skipped.size(), 6u);
  for (const Axis axis : {Axis::kLayers, Axis::kRing, Axis::kUlysses}) {
    const Delivered split = drawn(along(axis, 2));
    EXPECT_EQ(*split.result.request.cache.skipped, skipped) << to_string(along(axis, 2));
    EXPECT_LE(rel_l2(split.latents, one.latents), 2e-5) << to_string(along(axis, 2));
  }
}

// Ranks hold no more together than the sum of their plans.
TEST(References, RanksTakeNoMoreThanPlanned) {
  Request request = edit(2);
  request.references = {seen(320, 272, 0), seen(144, 144, 1), seen(96, 304, 2)};
  for (const Axis axis : {Axis::kRing, Axis::kUlysses}) {
    const Layout layout = along(axis, 2);
    const size_t live = tensor_bytes_live();
    std::atomic<uint64_t> planned{0}, measured{0};
    run_ranks(2, [&](Communicator& world) {
      Generator generator(kEditModel, options_of(DType::kF32), RankPlacement::of(world, layout));
      planned += generator.plan(generator.resolve(request)).high_water;
      const RunResult result = generator.run(request, nullptr, {});
      // Tensors are counted of both ranks together, the arena of each.
      if (world.rank() == 0) measured += result.tensor_bytes_peak - live;
      measured += result.arena_high_water;
    });
    EXPECT_GT(measured, planned / 2) << to_string(layout);
    EXPECT_LE(measured, planned) << to_string(layout);
  }
}

TEST(References, TheFirstGivesTheSize) {
  const Generator generator(kEditModel, options_of(DType::kF32));
  Request request = edit();
  request.width = request.height = 0;
  const Request resolved = generator.resolve(request);
  EXPECT_EQ(resolved.width, 80);
  EXPECT_EQ(resolved.height, 64);
  EXPECT_EQ(generator.facts(resolved).reference_rows, 4 * 5 + 7 * 4);
  EXPECT_EQ(generator.facts(resolved).tokens(), "20 + 48 of references");
  request.references.clear();
  EXPECT_EQ(generator.resolve(request).width, 1024);
}

TEST(References, WrongOnesAreRefused) {
  const auto fault = [](const Request& request, const std::string& model = kEditModel) {
    const Generator generator(model, options_of(DType::kF32));
    return error_of([&] { generator.resolve(request); }, ErrorKind::kUsage);
  };
  EXPECT_EQ(fault(edit()), "");
  Request request = edit();
  request.references[1] = seen(63, 100, 0);
  const std::string legal = "legal: sides of at least 64 pixels, one at most 8 times as long";
  EXPECT_TRUE(contains(fault(request), "a picture of 63x100, " + legal));
  request.references[1] = seen(64, 513, 0);
  EXPECT_TRUE(contains(fault(request), legal));
  request.references[1] = seen(64, 512, 0);
  EXPECT_EQ(fault(request), "");
  request.references.resize(101, request.references[0]);
  EXPECT_TRUE(contains(fault(request), "reference is given 101 times, legal: 0 ... 100"));
  request = edit();
  request.image = request.references[0];
  EXPECT_TRUE(contains(fault(request), "takes pictures as references alone; legal: reference"));
  request.image = {};
  request.image_fit = PictureFit::kStretch;
  EXPECT_TRUE(contains(fault(request), "has rules of its own for references"));
  request = job();
  request.references = {seen(90, 70, 0)};
  EXPECT_TRUE(contains(fault(request, kModel), "reads no reference pictures; legal: no picture"));
  EXPECT_TRUE(contains(fault(request, "tests/golden/pipeline_ti2v_5b/model"),
                       "reads no reference pictures; legal: image"));
}

}  // namespace
}  // namespace weft::test
