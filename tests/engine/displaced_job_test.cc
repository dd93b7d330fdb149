// Whole generations under --method distrifusion and pcpp: the layout changes nothing, bytes and
// memory are as planned, delays change no bit, jobs go on at exact steps, and what cannot work is
// refused.
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

// Three latent frames of 2 x 2 tokens.
Request displaced_job(const std::string& method) {
  Request request = job();
  request.steps = 9;
  request.method = parse_method(method, "method");
  return request;
}

Layout patches(int count) { return along(Axis::kPatch, count); }

// PipeFusion's ranks are stages, others' hold patches.
bool staged(const Request& request) { return std::holds_alternative<Pipefusion>(request.method); }
Layout split_of(const Request& request, int count) {
  return staged(request) ? along(Axis::kLayers, count) : patches(count);
}

const char* const kMethods[] = {
    "distrifusion:patches=4,warmup=2",    "distrifusion:patches=3,warmup=0,split=frames",
    "pcpp:patches=4,window=0.5,warmup=1", "pcpp:patches=3,window=1,last_window=0,warmup=1",
    "pipefusion:patches=3,warmup=1",      "pipefusion:patches=6,warmup=2"};
const char* const kCodedMethods[] = {
    "distrifusion:patches=4,warmup=1,code=fp8", "distrifusion:patches=3,warmup=2,code=residual-fp8",
    "pcpp:patches=4,window=1,last_window=0.2,warmup=1,code=residual-fp8,resync=4"};

TEST(DisplacedJob, EveryLayoutGivesOneRanksLatents) {
  for (const char* method : kMethods) {
    const Request request = displaced_job(method);
    EXPECT_GE(rel_l2(deliver(displaced_job("full"), {}).latents, deliver(request, {}).latents),
              1e-4)
        << method;
    const std::vector<Layout> layouts = expect_latents_of_one_rank(request, reference_options());
    EXPECT_GE(layouts.size(), 8u) << method;
    EXPECT_GE(
        std::ranges::count_if(layouts,
                              [&](const Layout& layout) {
                                return layout[staged(request) ? Axis::kLayers : Axis::kPatch] > 1;
                              }),
        staged(request) ? 2 : 5)
        << method;
  }
}

// Reference ops give a token the same bits whichever rank has it, so that patches on one rank and
// on several are told apart by nothing, and neither are delays. Messages travel into the next step.
TEST(DisplacedJob, DelaysAndPatchesOfARankChangeNoBit) {
  std::vector<std::string> methods(std::begin(kMethods), std::end(kMethods));
  methods.insert(methods.end(), std::begin(kCodedMethods), std::end(kCodedMethods));
  for (const std::string& method : methods) {
    const Request request = displaced_job(method);
    const Delivered one = deliver(request, {});
    uint64_t seed = 0;
    for (const int count : {2, 3})
      for (int round = 0; round < 3; ++round) {
        ++seed;
        Layout layout = split_of(request, staged(request) ? 2 : count);
        if (round == 2) layout[Axis::kCfg] = 2;
        const Delivered parts =
            deliver(request, layout, {},
                    {.rendezvous = seed % 2 == 0, .delay_seed = seed, .max_delay_us = 200});
        EXPECT_EQ(parts.latents, one.latents) << method << " " << to_string(layout);
      }
  }
}

// Law L-Q2 for a whole job: eight bits are close to none, and residuals closer.
TEST(DisplacedJob, CodesAreCloseToNone) {
  const auto draw = [](const std::string& code) {
    return deliver(displaced_job("distrifusion:patches=4,warmup=1" + code), patches(2)).latents;
  };
  const std::vector<float> none = draw("");
  EXPECT_EQ(draw(",code=none"), none);
  const double fp8 = rel_l2(draw(",code=fp8"), none),
               residual = rel_l2(draw(",code=residual-fp8"), none);
  EXPECT_GT(fp8, 1e-6);
  EXPECT_LT(fp8, 1.0 / 16);
  EXPECT_GT(residual, 1e-7);
  EXPECT_LT(residual, fp8);
}

// Laws L-D1 and L-P5 for a whole job.
TEST(DisplacedJob, AWarmupOverAllStepsIsFullAttention) {
  const std::vector<float> full = deliver(displaced_job("full"), {}).latents;
  for (const char* method : {"distrifusion:patches=3,warmup=9", "pcpp:patches=4,warmup=20"})
    for (const int count : {1, 3})
      EXPECT_LE(rel_l2(deliver(displaced_job(method), patches(count)).latents, full), 1e-5);
  EXPECT_EQ(deliver(displaced_job("distrifusion:patches=1,warmup=0"), {}).latents, full);
}

// The keys and values of every forward and layer are the formula's: an exact step sends all rows, a
// displaced one what the next reads, the last one nothing.
TEST(DisplacedJob, BytesAreTheFormulaForAWholeJob) {
  const WanConfig wan = WanConfig::from_json_file(kModel + "/transformer/config.json");
  for (const std::string text : {"distrifusion:patches=4,warmup=2", "pcpp:patches=4,warmup=1",
                                 "pcpp:patches=4,window=1,last_window=0.1,warmup=0,resync=4",
                                 "distrifusion:patches=4,warmup=1,code=fp8",
                                 "pcpp:patches=4,warmup=1,resync=4,code=residual-fp8"})
    for (const int count : {2, 3, 4}) {
      const Request request = displaced_job(text);
      Layout layout = patches(count);
      layout.vae_ranks = 1;
      run_ranks(count, [&](Communicator& world) {
        Generator generator(kModel, reference_options(), RankPlacement::of(world, layout));
        const Request resolved = generator.resolve(request);
        const Displaced method = *generator.facts(resolved).patches.displaced;
        std::vector<Range> ranks;
        for (int rank = 0; rank < count; ++rank)
          ranks.push_back(patches_of_part(method, count, rank));
        const PatchRows rows(method, ranks);
        const AttendShape shape{wan.heads, wan.heads, wan.head_dim};
        int64_t sent = 0;
        for (int step = 0; step < request.steps; ++step) {
          if (method.exact(step) || step == 0)
            sent += exact_sent_bytes(rows, world.rank(), shape);
          else if (step + 1 < request.steps)
            sent += displaced_sent_bytes(rows, world.rank(), shape, method.window_of(step + 1));
        }
        generator.run(request, nullptr);
        EXPECT_EQ(world.counters().sent[static_cast<size_t>(Payload::kKeyValue)].bytes,
                  2 * wan.layers * sent)
            << text << " " << count << " ranks, rank " << world.rank();
      });
    }
}

// A rank plans the keys of its rows and of those that it sees, for every layer and branch.
TEST(DisplacedJob, MemoryIsAsPlanned) {
  for (const char* method :
       {"full", "distrifusion:patches=4", "pcpp:patches=4", "pipefusion:patches=4",
        "distrifusion:patches=4,code=fp8", "distrifusion:patches=4,code=residual-fp8"}) {
    SCOPED_TRACE(method);
    Request request = displaced_job(method);
    request.width = request.height = 128;
    expect_planned_memory(request, options_of(DType::kF32));
  }
}

// Thirty jobs are stopped and go on, on other ranks too, each from its newest checkpoint.
TEST(DisplacedJob, GoesOnAtExactStepsWithTheSameFrames) {
  const std::string path = testing::TempDir() + "/displaced_checkpoint.safetensors";
  remove_checkpoints(path);  // of a test that was cut off
  int resumed = 0;
  for (const std::string text :
       {"distrifusion:patches=4,warmup=1,resync=4", "pcpp:patches=3,resync=4",
        "distrifusion:patches=3,warmup=1,code=residual-fp8,resync=4",
        "pipefusion:patches=3,warmup=1,resync=4"}) {
    Request request = displaced_job(text);
    request.steps = 13;
    const Delivered one = deliver(request, {});
    for (int stop = 0; stop < 10; ++stop) {
      const auto split = [&](int count) {
        return split_of(request, staged(request) ? 1 + count % 2 : count);
      };
      const Layout layout = split(1 + stop % 3), other = split(1 + (stop + 1) % 3);
      std::atomic<bool> flag{false};
      struct Stopper final : ProgressListener {
        Stopper(std::atomic<bool>& flag, int step) : flag(flag), step(step) {}
        void progress(const Progress& progress) override {
          if (progress.stage == "denoise" && progress.step >= step) flag = true;
        }
        std::atomic<bool>& flag;
        const int step;
      } stopper(flag, 3 + stop);
      const Delivered cut = deliver(request, layout, [&](RunOptions& o) {
        o.checkpoint_path = path;
        o.checkpoint_seconds = 0;
        o.stop = &flag;
        o.listener = &stopper;
      });
      EXPECT_TRUE(cut.stopped) << stop;
      if (!fs::exists(path)) continue;
      const Delivered rest = deliver(request, other, [&](RunOptions& o) {
        o.resume = std::make_shared<Checkpoint>(read_checkpoint(path));
        EXPECT_EQ(o.resume->step % 4, 0);
      });
      ++resumed;
      EXPECT_EQ(rest.result.framehash, one.result.framehash)
          << text << " stopped after " << 3 + stop << ", resumed after " << rest.result.resumed_at;
      remove_checkpoints(path);
    }
  }
  EXPECT_GE(resumed, 36);
}

// Each patch has text rows of its own, so that a rank holds one patch. Delays change no bit, and
// with all steps exact the picture is that of one rank (laws L-U2 and L-D1 for joint text).
class JointText : public testing::TestWithParam<const char*> {
 protected:
  const std::string model = std::string("tests/golden/") + GetParam() + "/model";
};

INSTANTIATE_TEST_SUITE_P(Models, JointText,
                         testing::Values("pipeline_zimage_cfg", "pipeline_qwen_image",
                                         "pipeline_flux_dev", "pipeline_krea2_raw"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(JointText, BelongsToItsPatch) {
  const auto draw = [&](const std::string& method, int count, const LocalOptions& local = {}) {
    Request request = displaced_job(method);
    request.frames = 1;
    request.width = request.height = 64;
    return deliver(request, patches(count), {}, local, reference_options(), model).latents;
  };
  const std::vector<float> full = draw("full", 1);
  for (const int count : {1, 2, 3}) {
    const std::string method = "distrifusion:patches=" + std::to_string(count);
    EXPECT_LE(rel_l2(draw(method + ",warmup=9", count), full), 1e-5) << count;
    const std::vector<float> displaced = draw(method + ",warmup=1", count);
    EXPECT_EQ(rel_l2(displaced, full) > 1e-5, count > 1) << count;
    EXPECT_EQ(draw(method + ",warmup=1", count, {.delay_seed = 5, .max_delay_us = 200}), displaced);
  }
  const Generator generator(model, reference_options());
  Request request = displaced_job("pcpp:patches=2");
  request.frames = 1;
  EXPECT_TRUE(contains(refuse({}, generator.layout_limits(generator.resolve(request))),
                       "text rows of its own"));
}

// Laws L-PF6 and L-PF7 with joint text, whose rows travel with every patch: the stages change no
// bit, and a displaced step carries X + M text rows over an edge per branch, for any number of
// layers. An exact step carries X and the text once.
TEST_P(JointText, StagesChangeNoBitAndSendTheFormula) {
  Request request = displaced_job("pipefusion:patches=3,warmup=2");
  request.frames = 1;
  request.width = request.height = 64;
  const std::vector<float> one = deliver(request, {}, {}, {}, reference_options(), model).latents;
  EXPECT_EQ(deliver(request, along(Axis::kLayers, 2), {}, {.delay_seed = 3, .max_delay_us = 200},
                    reference_options(), model)
                .latents,
            one);
  run_ranks(2, [&](Communicator& world) {
    Layout layout = along(Axis::kLayers, 2);
    layout.text_ranks = 1;
    Generator generator(model, reference_options(), RankPlacement::of(world, layout));
    const Request resolved = generator.resolve(request);
    const JobFacts facts = generator.facts(resolved);
    generator.run(request, nullptr);
    const TransformerModel& transformer = generator.model()->directory.expert(0);
    const int64_t tokens = facts.sequence().tokens, branches = facts.guided() ? 2 : 1,
                  rows = branches * tokens;
    int64_t text = 0;
    for (int branch = 0; branch < branches; ++branch)
      text += transformer.joint_rows(tokens, facts.prompt_rows[branch]);
    EXPECT_GT(text, 0);
    const int64_t sent = 2 * (rows + text) + (request.steps - 2) * (rows + 3 * text);
    EXPECT_EQ(world.counters().sent[static_cast<size_t>(Payload::kHidden)].bytes,
              world.rank() == 0 ? sent * transformer.traits().width * 4 : 0);
  });
}

// A second job of another size has the patches of its own size.
TEST(DisplacedJob, TwoSizesInARowAreApart) {
  for (const char* method : {"distrifusion:patches=2,warmup=0", "pcpp:patches=2,warmup=0",
                             "pipefusion:patches=2,warmup=0"}) {
    Request small = displaced_job(method), large = small;
    large.width = 64;
    std::map<int, std::string> alone;
    const auto run = [&](const std::vector<Request>& requests, int from) {
      run_ranks(2, [&](Communicator& world) {
        Generator generator(kModel, options_of(DType::kF32),
                            RankPlacement::of(world, split_of(small, 2)));
        for (size_t i = 0; i < requests.size(); ++i) {
          const std::string signature = generator.run(requests[i], nullptr).framehash;
          if (world.rank() != 0) continue;
          std::string& expected = alone[(from + static_cast<int>(i)) % 2];
          if (expected.empty()) expected = signature;
          EXPECT_EQ(signature, expected) << method << " job " << i;
        }
      });
    };
    run({small}, 0);
    run({large}, 1);
    EXPECT_NE(alone[0], alone[1]);
    run({small, large, small}, 0);
  }
}

TEST(DisplacedJob, JobsOfOneGeneratorAreApart) {
  expect_jobs_apart(displaced_job("distrifusion:patches=2,warmup=0"), displaced_job("full"),
                    patches(2));
}

TEST(DisplacedJob, RefusesWhatCannotWork) {
  const Generator generator(kModel, options_of(DType::kF32));
  const auto why = [&](const std::string& method, int steps = 9, int resync = 0) {
    Request request = displaced_job(method);
    request.steps = steps;
    if (resync > 0) request.method->resync = resync;
    return refusal([&] { generator.resolve(request); });
  };
  for (const auto& [method, text] :
       {std::pair{"distrifusion", "no number of patches; legal here: patches=1 ... 6"},
        {"pcpp:patches=7", "7 patches; legal here: patches=1 ... 6"},
        {"pcpp:patches=4,split=frames", "4 patches; legal here: patches=1 ... 3"},
        {"pcpp:patches=2,window=0.2,last_window=0.3", "a window that grows"}})
    EXPECT_TRUE(contains(why(method), text));
  EXPECT_TRUE(contains(why("pcpp:patches=2", 8), "9 steps or more"));
  EXPECT_TRUE(contains(why("full", 9, 4), "--resync-every is 4"));
  const LayoutLimits limits =
      generator.layout_limits(generator.resolve(displaced_job("pcpp:patches=2")));
  Layout ring;
  ring[Axis::kRing] = 2;
  EXPECT_TRUE(contains(refuse(ring, limits), "beside displaced patches"));
  EXPECT_TRUE(contains(refuse(patches(3), limits), "patch is 3"));
  EXPECT_TRUE(contains(
      refuse(patches(2), generator.layout_limits(generator.resolve(displaced_job("full")))),
      "no displaced patches"));
}

}  // namespace
}  // namespace weft::test
