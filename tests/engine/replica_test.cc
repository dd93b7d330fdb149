// Runs a whole generation on several ranks. Every kind of message has the bytes of its method's
// formula, and delays change no bit.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/parts/rank_placement.h"
#include "models/footprint.h"
#include "models/umt5/encoder.h"
#include "models/wan/transformer.h"
#include "parallel/transport/silent.h"
#include "tests/engine/replica_job.h"
#include "tests/models/transformer_testing.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

TEST(ReplicaBytes, AreTheMethodsFormulasForAWholeJob) {
  const Generator generator(kModel, options_of(DType::kF32));
  const LayoutLimits limits = generator.layout_limits(generator.resolve(job()));
  int layouts = 0;
  for (int ranks = 2; ranks <= 6; ++ranks)
    for (const Layout& layout : legal_layouts(ranks, limits))
      for (DType dtype : {DType::kF32, DType::kBF16}) {
        ++layouts;
        const Outcome outcome = run_threads(layout, dtype);
        for (const std::string& fault : byte_faults(layout, dtype, outcome.counters))
          ADD_FAILURE() << fault;
      }
  EXPECT_GE(layouts, 40);
}

// The text encoder and the VAE use fewer ranks than the transformer. The video is that of one rank,
// the bytes follow the formulas, and the other ranks send nothing for them.
TEST(ReplicaBytes, TextEncoderAndVaeMayHaveFewerRanks) {
  const std::vector<float> whole = run_rank(RankPlacement(), DType::kF32);
  for (const auto& [ranks, text] :
       {std::pair{2, "ulysses=2,text_ranks=1"}, std::pair{3, "ring=3,text_ranks=2,vae_ranks=2"},
        std::pair{4, "layers=2,ring=2,text_ranks=1,vae_ranks=1"},
        std::pair{4, "cfg=2,ulysses=2,text_ranks=3,vae_ranks=3"},
        std::pair{4, "tensor=2,cfg=2,vae_ranks=2"}, std::pair{3, "ring=3,decode_rank=0"},
        std::pair{4, "layers=2,ring=2,decode_rank=3"}}) {
    const Layout layout = parse_layout(text, ranks, {});
    const Outcome outcome = run_threads(layout, DType::kF32);
    for (const std::string& fault : byte_faults(layout, DType::kF32, outcome.counters))
      ADD_FAILURE() << text << ": " << fault;
    ASSERT_EQ(outcome.video.size(), whole.size()) << text;
    EXPECT_LE(rel_l2(outcome.video, whole), 1e-5) << text;
    const int bands = layout.vae_ranks > 0 ? layout.vae_ranks : ranks;
    for (int rank = bands; rank < ranks; ++rank)
      EXPECT_EQ(outcome.counters[rank].sent[static_cast<size_t>(Payload::kFrames)].bytes, 0)
          << text << ", rank " << rank;
  }
}

// A short prompt's sums take the star where it has fewer hops: with three ranks or more.
TEST(ReplicaBytes, TextSumsChooseStarOrRingBySize) {
  const Layout layout = parse_layout("ring=3", 3, {});
  const CommCounters leaf = run_threads(layout, DType::kF32).counters[2];
  // A star has two messages of a leaf per sum, one of them sent; a ring sends four.
  const Umt5Config text = Umt5Config::from_json_file(kModel + "/text_encoder/config.json");
  EXPECT_EQ(leaf.sent[static_cast<size_t>(Payload::kPartial)].messages, 2 * 2 * text.num_layers);
}

// The prediction contains every allocation of a forward on every rank, including the seams'.
TEST(RankPlacement, AForwardTakesThePredictedArena) {
  const TensorFile file = TensorFile::open(kModel + "/transformer");
  const WanConfig config = WanConfig::from_json_file(kModel + "/transformer/config.json");
  const std::array<int64_t, 4> latent{config.in_channels, 3, 6, 10};
  const auto grid = config.traits().grid(latent[1], latent[2], latent[3]);
  const int64_t tokens = grid[0] * grid[1] * grid[2];
  const Sequence all{tokens, grid[0]};
  const DualScope scope{.window = 1, .global = 2, .trained = 2, .bias = 1};
  LayoutLimits limits{.heads = config.heads, .layers = 1, .tokens = tokens, .ffn = config.ffn_dim};
  std::vector<std::pair<Layout, std::optional<DualScope>>> jobs;
  for (int ranks = 1; ranks <= 6; ++ranks)
    for (const bool clips : {false, true}) {
      limits.method = clips ? MethodLimit{SplitRule::kClips, grid[0]} : MethodLimit{};
      for (const Layout& layout : legal_layouts(ranks, limits))
        jobs.emplace_back(layout, clips ? std::optional(scope) : std::nullopt);
    }
  int layouts = 0;
  for (const auto& [given, dual_scope] : jobs)
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      ++layouts;
      const Layout& layout = given;
      const std::optional<DualScope>& attention = dual_scope;
      run_ranks(layout.ranks(), [&](Communicator& world) {
        const RankPlacement placement = RankPlacement::of(world, layout);
        ForwardSeams seams(placement, {.dual_scope = attention});
        Stream stream = Stream::cpu(1);
        Arena arena;
        const TransformerLoad load = placement.load(config.traits(), {.dtype = dtype});
        const WanTransformer wan = WanTransformer::load(stream, file, config, load);
        const Tensor in(DType::kF32, latent), out(DType::kF32, latent);
        const Tensor embeds(DType::kF32, {5, config.text_dim});
        Context context = seams.context(stream, arena, Pass{}, all);
        const WanText text = prepare_text(wan, context, embeds, 9);
        const TimeSegment time{{0, tokens}, 500};
        test::forward(wan, context, load.blocks, in, {&time, 1}, text, rope_of(wan, grid), out);
        DryRun run;
        const RankPlacement silent(
            Communicator(std::make_shared<SilentTransport>(world.rank(), world.size())), layout);
        ForwardSeams silent_seams(silent, {.dual_scope = attention});
        const DryTransformer dry = dry_load(run, *make_wan_model(config), file, load);
        Context dry_context = silent_seams.context(run.stream(), run.arena(), Pass{}, all);
        const Footprint forward = dry_forward(run, *dry.model, dry_context, grid, 5, 9);
        EXPECT_EQ(arena.high_water(), forward.arena)
            << to_string(layout) << ", rank " << world.rank();
      });
    }
  EXPECT_GE(layouts, 30);
}

// Under cfg=2 the second rank has only the negative prompt to compute. It does not load an expert
// whose guidance is off, and its plan does not count it.
TEST(RankPlacement, ARankDoesNotLoadAnExpertThatItDoesNotComputeWith) {
  const std::string model = "tests/golden/pipeline_two_experts/model";
  const Layout layout = parse_layout("cfg=2,text_ranks=1,vae_ranks=1", 2, {});  // bits of one rank
  struct Loaded {
    std::string framehash;
    size_t live = 0;  // tensor bytes of both ranks after the run
    std::vector<uint64_t> planned;
  };
  const auto measure = [&](double low_guidance) {
    Request request = job();
    request.steps = 5;  // the last ones are the second expert's
    request.guidance_scale_2 = low_guidance;
    Loaded loaded;
    const size_t before = tensor_bytes_live();
    run_ranks(2, [&](Communicator& world) {
      Generator generator(model, options_of(DType::kF32), RankPlacement::of(world, layout));
      const RunResult result = generator.run(request, nullptr);
      Stream stream = Stream::cpu(1);
      world.barrier(stream, {.hop = 90});
      if (world.rank() == 0) loaded.framehash = result.framehash;
      if (world.rank() == 0) loaded.live = tensor_bytes_live() - before;
      world.barrier(stream, {.hop = 91});
      if (world.rank() == 1) loaded.planned = generator.plan(request).parts.experts;
    });
    EXPECT_EQ(loaded.framehash,
              Generator(model, options_of(DType::kF32)).run(request, nullptr).framehash);
    return loaded;
  };
  const Loaded guided = measure(3), idle = measure(1);
  ASSERT_EQ(guided.planned.size(), 2u);
  EXPECT_EQ(idle.planned, (std::vector<uint64_t>{guided.planned[0], 0}));

  const size_t before = tensor_bytes_live();
  const std::string folder = model + "/transformer_2";
  Stream stream = Stream::cpu(1);
  const WanTransformer expert = WanTransformer::load(
      stream, TensorFile::open(folder), WanConfig::from_json_file(folder + "/config.json"));
  EXPECT_EQ(guided.live - idle.live, tensor_bytes_live() - before);
}

TEST(RankPlacement, DelaysAndRendezvousChangeNoBitOfTheVideo) {
  for (const char* text : {"cfg=2,ulysses=2", "layers=2,ring=2", "token_ring=2,tensor=2"}) {
    const Layout layout = parse_layout(text, 4, {});
    const std::vector<float> plain = run_threads(layout, DType::kF32).video;
    EXPECT_FALSE(plain.empty());
    for (uint64_t seed = 1; seed <= 5; ++seed)
      EXPECT_EQ(run_threads(layout, DType::kF32,
                            {.rendezvous = seed % 2 == 1, .delay_seed = seed, .max_delay_us = 30})
                    .video,
                plain)
          << text << " seed " << seed;
  }
}

// 8-bit weights allow layouts that split heads or layers, but not those that split the width. Where
// the text was summed in another order, a value between two quantisation levels may be rounded to
// either one. So a layout may differ by a tenth of the error that 8 bits have themselves.
TEST(RankPlacement, EightBitWeightsUnderEveryLayoutThatKeepsTheWidth) {
  const auto latents_of = [](const Layout& layout, WeightFormat weights) {
    std::vector<float> latents;
    run_ranks(layout.ranks(), [&](Communicator& world) {
      GeneratorOptions options = options_of(DType::kF32);
      options.weights = weights;
      Generator generator(kModel, options, RankPlacement::of(world, layout));
      LatentTap tap;
      RunOptions run;
      run.tap = &tap;
      generator.run(job(), nullptr, run);
      if (world.rank() == 0) latents = std::move(tap.latents);
    });
    return latents;
  };
  const auto distance = [](const std::vector<float>& a, const std::vector<float>& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += std::pow(double{a[i]} - b[i], 2);
    return std::sqrt(sum);
  };
  const std::vector<float> one = latents_of({}, WeightFormat::kInt8);
  const double error = distance(one, latents_of({}, WeightFormat::kCompute));
  EXPECT_GT(error, 0);
  for (const char* text : {"cfg=2,layers=2", "ulysses=2,ring=2", "cfg=2,token_ring=2"}) {
    const double apart = distance(latents_of(parse_layout(text, 4, {}), WeightFormat::kInt8), one);
    EXPECT_LT(apart, error / 10) << text;
  }
  expect_error(ErrorKind::kUsage, "tensor=2",
               [&] { latents_of(parse_layout("tensor=2", 2, {}), WeightFormat::kInt8); });
}

}  // namespace
}  // namespace weft::test
