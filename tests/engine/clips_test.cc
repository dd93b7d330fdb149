// Whole generations under --method clips: the layout changes nothing, memory is as planned, stale
// frames change no bit by chance, and what cannot work is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "engine/job/checkpoint.h"
#include "engine/schedules/denoiser.h"
#include "models/wan/transformer.h"
#include "tests/engine/delivered_job.h"
#include "tests/parallel/byte_formulas.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

// Seven latent frames.
Request clips_job(const std::string& method) {
  Request request = job();
  request.frames = 25;
  request.steps = 4;
  request.method = parse_method(method, "method");
  return request;
}

Layout clips(int count) { return along(Axis::kClip, count); }

std::vector<float> latents_of_clips(const Request& request, const Layout& layout, DType dtype,
                                    const LocalOptions& local = {}) {
  return deliver(request, layout, {}, local, options_of(dtype)).latents;
}

TEST(Clips, EveryLayoutGivesOneRanksLatents) {
  const Request request = clips_job("clips:window=2,global=3,trained=5,bias=2");
  const std::vector<float> one = latents_of_clips(request, {}, DType::kF32);
  EXPECT_GE(rel_l2(latents_of_clips(clips_job("full"), {}, DType::kF32), one), 1e-3);
  const GeneratorOptions options = options_of(DType::kF32);
  const Generator generator(kModel, options);
  EXPECT_EQ(generator.layout_limits(generator.resolve(request)).method.of(SplitRule::kClips), 7);
  EXPECT_GE(expect_latents_of_one_rank(request, options).size(), 15u);
}

// Law 30 for a whole job: keys and values are the formula's, of every forward and layer. One rank
// decodes, because bands of the VAE exchange keys and values, too.
TEST(Clips, BytesAreTheFormulaForAWholeJob) {
  const WanConfig wan = WanConfig::from_json_file(kModel + "/transformer/config.json");
  for (const int stale : {0, 1})
    for (const int count : {2, 3, 4}) {
      const Request request =
          clips_job("clips:window=2,global=3,trained=5,stale=" + std::to_string(stale));
      Layout layout = clips(count);
      layout.vae_ranks = 1;
      run_ranks(count, [&](Communicator& world) {
        Generator generator(kModel, options_of(DType::kF32), RankPlacement::of(world, layout));
        const JobFacts facts = generator.facts(generator.resolve(request));
        const Sequence all = facts.sequence();
        const ClipFrames frames(SequenceMap::clips(all, count), all, *facts.dual_scope);
        generator.run(request, nullptr);
        EXPECT_EQ(
            world.counters().sent[static_cast<size_t>(Payload::kKeyValue)].bytes,
            request.steps * 2 * wan.layers *
                dual_scope_sent_bytes(frames, world.rank(), {wan.heads, wan.heads, wan.head_dim}))
            << count << " clips, rank " << world.rank();
      });
    }
}

TEST(Clips, StaleFramesDependOnNoDelay) {
  const std::string numbers = "clips:window=2,global=3,trained=5,bias=2,stale=1";
  const Request stale = clips_job(numbers + ",warmup=1");
  const std::vector<float> fresh =
      latents_of_clips(clips_job(numbers + ",warmup=4"), {}, DType::kF32);
  EXPECT_LE(rel_l2(latents_of_clips(stale, {}, DType::kF32), fresh), 1e-6);  // no rank is another
  for (const int count : {2, 3}) {
    EXPECT_LE(rel_l2(latents_of_clips(clips_job(numbers + ",warmup=4"), clips(count), DType::kF32),
                     fresh),
              1e-5);
    const std::vector<float> plain = latents_of_clips(stale, clips(count), DType::kF32);
    EXPECT_GE(rel_l2(plain, fresh), 1e-5) << count;
    for (uint64_t seed = 1; seed <= 4; ++seed)
      EXPECT_EQ(
          latents_of_clips(stale, clips(count), DType::kF32,
                           {.rendezvous = seed % 2 == 0, .delay_seed = seed, .max_delay_us = 200}),
          plain);
  }
}

std::vector<Layout> deliveries() {
  std::vector<Layout> all{clips(2), clips(3), clips(4)};
  all.push_back(clips(2));
  all.back()[Axis::kUlysses] = 2;
  all.push_back(clips(2));
  all.back()[Axis::kLayers] = 2;
  all.push_back(clips(2));
  all.back()[Axis::kCfg] = 2;
  all.push_back(clips(3));
  all.back().vae_ranks = 1;
  all.push_back(clips(3));
  all.back().decode_rank = 2;
  return all;
}

// Noise, latents, frames and signature have the bits of one rank, whoever decodes, and whatever the
// delays are.
TEST(Clips, FramesAreThoseOfOneRankToTheBit) {
  Request request = clips_job("clips:window=2,global=3,trained=5,bias=2");
  request.steps = 2;
  for (const Rng rng : {Rng::kPortable, Rng::kTorchCpu}) {
    request.rng = rng;
    const Delivered one = deliver(request, {});
    EXPECT_EQ(one.result.frames, 25);
    uint64_t seed = 0;
    for (const Layout& layout : deliveries()) {
      if (rng == Rng::kTorchCpu && layout[Axis::kClip] != 3) continue;
      ++seed;
      const Delivered parts =
          deliver(request, layout, {},
                  {.rendezvous = seed % 2 == 0, .delay_seed = seed, .max_delay_us = 50});
      EXPECT_EQ(parts.result.framehash, one.result.framehash) << to_string(layout);
      EXPECT_EQ(parts.result.signature, one.result.signature) << to_string(layout);
      EXPECT_EQ(parts.latents, one.latents) << to_string(layout);
    }
  }
}

// A rank keeps what the blocks added to the rows of its own clip, for each branch that it computes.
TEST(Clips, AStepCacheGivesTheBitsOfOneRank) {
  Request request = clips_job("clips:window=2,global=3,trained=5,bias=2");
  request.steps = 6;
  const Delivered plain = deliver(request, {});
  request.cache = {StepCacheKind::kTeaCache, 0.1, std::vector<int>{1, 2, 4}};
  const Delivered one = deliver(request, {});
  EXPECT_NE(one.latents, plain.latents);
  std::vector<Layout> layouts = deliveries();
  for (const Axis axis : {Axis::kLayers, Axis::kCfg}) {
    layouts.push_back(clips(2));
    layouts.back()[axis] = 2;
  }
  for (const Layout& layout : layouts) {
    const Delivered parts = deliver(request, layout);
    EXPECT_EQ(parts.latents, one.latents) << to_string(layout);
    ASSERT_EQ(parts.result.cached.size(), 6u);
    for (size_t step = 0; step < 6; ++step) {
      EXPECT_EQ(parts.result.cached[step].skipped, step == 1 || step == 2 || step == 4);
      EXPECT_NEAR(*parts.result.cached[step].output_change, *one.result.cached[step].output_change,
                  1e-4);
    }
  }
}

// Checkpoints and the file of final latents are those of one rank, and every number of clips goes
// on from them.
TEST(Clips, KeptLatentsAreThoseOfOneRankAndAreResumed) {
  Request request = clips_job("clips:window=2,global=3,trained=5,bias=2");
  request.steps = 3;
  const auto file = [](const char* name) { return testing::TempDir() + "/clips_" + name; };
  const std::string latents = file("latents.safetensors");
  const std::string steps = file("checkpoint.safetensors");
  const Delivered one = deliver(request, {}, [&](RunOptions& o) { o.latents_path = latents; });
  const Checkpoint whole = read_checkpoint(latents);
  Layout staged = clips(2);
  staged[Axis::kLayers] = 2;
  for (const Layout& layout : {staged, deliveries().back()}) {
    const Delivered made = deliver(request, layout, [&](RunOptions& o) {
      o.latents_path = latents;
      o.checkpoint_path = steps;
      o.checkpoint_seconds = 0;
    });
    EXPECT_EQ(made.result.latents_path, latents);
    const Checkpoint final = read_checkpoint(latents), before = read_checkpoint(steps);
    EXPECT_EQ(final.signature, whole.signature) << to_string(layout);
    EXPECT_EQ(std::memcmp(final.latent.view().data, whole.latent.view().data,
                          whole.latent.view().bytes()),
              0)
        << to_string(layout);
    EXPECT_EQ(before.step, 2);
    for (const Layout& other : {Layout{}, layout})
      for (const std::string& from : {latents, steps}) {
        const Delivered again = deliver(request, other, [&](RunOptions& o) {
          o.resume = std::make_shared<Checkpoint>(read_checkpoint(from));
        });
        EXPECT_EQ(again.result.framehash, one.result.framehash)
            << from << " of " << to_string(layout) << " on " << to_string(other);
        EXPECT_EQ(again.result.signature, one.result.signature);
      }
    remove_checkpoints(steps);
  }
  fs::remove(latents);
}

// A second job of one generator sees no frame of the first, and full attention follows clips.
TEST(Clips, JobsOfOneGeneratorAreApart) {
  expect_jobs_apart(clips_job("clips:window=2,global=3,trained=5,bias=2,stale=1,warmup=0"),
                    clips_job("full"), clips(2));
}

TEST(Clips, MemoryIsAsPlanned) {
  Request request = clips_job("clips:window=1,global=2,trained=5");
  request.width = request.height = 128;
  for (const DType dtype : {DType::kF32, DType::kBF16})
    expect_planned_memory(request, options_of(dtype));
}

// A rank plans less for its clip than one rank for the video; stale frames are planned, too.
TEST(Clips, MemoryOfARankIsThatOfItsClip) {
  Request request = clips_job("clips:window=1,global=2,trained=5");
  request.width = request.height = 128;
  const auto planned = [&](const Layout& layout, int rank, const std::string& method) {
    Generator generator(kModel, options_of(DType::kF32), RankPlacement(layout, rank));
    request.method = parse_method(method, "method");
    return generator.plan(generator.resolve(request)).parts.denoise;
  };
  const std::string fresh = "clips:window=1,global=2,trained=5";
  const uint64_t whole = planned({}, 0, fresh);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_LT(planned(clips(3), rank, fresh), whole);
    EXPECT_GT(planned(clips(3), rank, fresh + ",stale=1"), planned(clips(3), rank, fresh));
  }
}

// Beside the VAE, decoding holds the clip's rows in place of the whole latent, and two frames or
// one channel of all of them. Denoising begins with the clip's frames.
TEST(Clips, DecodingHoldsNoWholeLatent) {
  Request request = clips_job("clips:window=1,global=2,trained=5");
  request.frames = 4 * 64 - 3;
  const auto planned = [&](const Layout& layout, int rank) {
    const Generator generator(kModel, options_of(DType::kF32), RankPlacement(layout, rank));
    return generator.plan(generator.resolve(request)).parts;
  };
  constexpr int64_t kFrame = 16 * 4 * 4 * sizeof(float), kLatent = 64 * kFrame;
  const ComponentBytes one = planned({}, 0);
  for (const int count : {2, 4})
    for (int rank = 0; rank < count; ++rank) {
      Layout layout = clips(count);
      layout.decode_rank = 0;
      const ComponentBytes part = planned(layout, rank);
      const auto fall = static_cast<int64_t>(one.decode) - static_cast<int64_t>(part.decode);
      const int64_t held = kLatent / count + (rank == 0 ? kLatent / 16 : 0);
      if (rank == 0)
        EXPECT_EQ(fall, kLatent - held) << count;
      else
        EXPECT_GE(fall, kLatent - held) << count;
      EXPECT_LT(part.denoise, one.denoise);
    }
}

TEST(Clips, RefusesWhatCannotWork) {
  const Generator generator(kModel, options_of(DType::kF32));
  const Request full = generator.resolve(clips_job("full"));
  EXPECT_TRUE(contains(refuse(clips(2), generator.layout_limits(full)), "--method clips"));
  EXPECT_TRUE(
      contains(refusal([&] { generator.resolve(clips_job("clips:global=8")); }), "global is 8"));
  const Generator joint("tests/golden/pipeline_zimage_cfg/model", options_of(DType::kF32));
  Request picture = job();
  picture.frames = 1;
  picture.method = parse_method("clips", "method");
  EXPECT_TRUE(contains(refusal([&] { joint.resolve(picture); }), "its text among the tokens"));
}

}  // namespace
}  // namespace weft::test
