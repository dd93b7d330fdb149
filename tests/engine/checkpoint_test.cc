// Checkpoints: a job that is stopped and resumed makes the same frames as an uninterrupted one,
// under every solver and layout. A damaged file is refused. A failing disk does not end the job.
#include "engine/job/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "engine/sampling/sampler.h"
#include "tests/engine/replica_job.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

const std::string kTwoExpertsModel = "tests/golden/pipeline_two_experts/model";
constexpr const char* kSolvers[] = {"unipc-diffusers", "unipc-original", "dpmpp-diffusers",
                                    "dpmpp-original",  "euler",          "distill-4"};

// Options of a run that `stopper` watches and may stop, with a checkpoint at `path` every
// `seconds`.
RunOptions kept_options(Stopper& stopper, const std::string& path, double seconds) {
  RunOptions options;
  options.listener = &stopper;
  options.stop = &stopper.stop;
  options.checkpoint_path = path;
  options.checkpoint_seconds = seconds;
  return options;
}

// The path is in memory if possible, because every checkpoint waits for its disk twice.
std::string file_of(const std::string& name) {
  const std::string folder = fs::is_directory("/dev/shm") ? "/dev/shm" : testing::TempDir();
  const std::string path =
      folder + "/weft_" + std::to_string(getpid()) + "_" + name + ".checkpoint.safetensors";
  remove_checkpoints(path);
  return path;
}

// Runs until `after` steps are done, and returns the checkpoint on the disk.
Checkpoint stopped_at(Generator& generator, const Request& request, int after,
                      const std::string& path) {
  Stopper stopper;
  stopper.after = after;
  const RunOptions options = kept_options(stopper, path, 1e9);
  thrown_error([&] { generator.run(request, nullptr, options); }, ErrorKind::kStopped);
  EXPECT_TRUE(stopper.warnings.empty());
  return read_checkpoint(path);
}

RunResult resumed(Generator& generator, const Request& request, Checkpoint checkpoint,
                  Stopper& stopper) {
  RunOptions options;
  options.listener = &stopper;
  options.stop = &stopper.stop;
  options.resume = std::make_shared<Checkpoint>(std::move(checkpoint));
  return generator.run(request, nullptr, options);
}

TEST(Checkpoint, AStoppedJobGoesOnToTheSameFrames) {
  const std::string path = file_of("exact");
  for (const std::string& model : {kModel, kTwoExpertsModel}) {
    Generator generator(model, options_of(DType::kF32));
    for (const char* solver : kSolvers)
      for (const double guidance : {1.0, 4.0}) {
        Request request = test::job();
        request.solver = solver;
        request.frames = 5;
        request.steps = 5;
        request.guidance_scale = request.guidance_scale_2 = guidance;
        const RunResult whole = generator.run(request, nullptr);
        for (const int after : {1, 2, 4}) {
          Stopper stopper;
          Checkpoint kept = stopped_at(generator, request, after, path);
          EXPECT_EQ(kept.step, after);
          const RunResult result = resumed(generator, request, std::move(kept), stopper);
          EXPECT_EQ(result.framehash, whole.framehash) << model << solver << after;
          EXPECT_EQ(result.signature, whole.signature) << model << solver << after;
          EXPECT_EQ(result.resumed_at, after);
          EXPECT_EQ(stopper.steps, 5 - after);
          EXPECT_TRUE(stopper.warnings.empty());
        }
      }
  }
  remove_checkpoints(path);
}

// A checkpoint holds the solver's history bit for bit: every tensor that it reads again and no
// other.
TEST(Checkpoint, HoldsTheSolversHistory) {
  const std::string path = file_of("history");
  for (const char* solver : kSolvers) {
    SamplerConfig config;
    config.kind = solver_from_name(solver);
    const Sampler sampler(config, 6);
    constexpr int64_t kCount = 24;
    Tensor x(DType::kF32, {2, 3, 2, 2}), v(DType::kF32, {2, 3, 2, 2});
    SamplerState state(kCount);
    Stream stream = Stream::cpu(1);
    Arena arena;
    for (int64_t k = 0; k < kCount; ++k) x.as<float>()[k] = 0.1f * static_cast<float>(k) - 1.1f;
    for (int step = 0; step < 3; ++step) {
      for (int64_t k = 0; k < kCount; ++k) v.as<float>()[k] = 0.3f * x.as<float>()[k] - 0.01f;
      sampler.step(stream, arena, step, v, x, state);
    }
    Checkpoint checkpoint;
    checkpoint.job = solver;  // a file keeps it as it is
    checkpoint.step = 3;
    checkpoint.total = 6;
    for (const auto& [name, view] : sampler.history(state)) {
      Tensor copy(DType::kF32, {kCount});
      std::copy_n(view.as<float>(), kCount, copy.as<float>());
      checkpoint.history.emplace_back(name, std::move(copy));
    }
    const size_t kept = std::string(solver).starts_with("unipc") ? 3
                        : std::string(solver).starts_with("dpm") ? 1
                                                                 : 0;
    EXPECT_EQ(checkpoint.history.size(), kept) << solver;
    write_checkpoint(path, checkpoint, x);
    const Checkpoint back = read_checkpoint(path);
    const auto same = [](const Tensor& a, const TensorView& b) {
      return std::memcmp(a.view().data, b.data, b.bytes()) == 0;
    };
    EXPECT_TRUE(same(back.latent, x)) << solver;
    ASSERT_EQ(back.history.size(), kept);
    for (const auto& [name, tensor] : back.history)
      for (const auto& [other, view] : sampler.history(state))
        if (name == other) {
          EXPECT_TRUE(same(tensor, view)) << solver << name;
        }
  }
  remove_checkpoints(path);
}

TEST(Checkpoint, LatentsAreOneWithNoStepToCome) {
  Generator generator(kModel, options_of(DType::kF32));
  RunOptions options;
  options.latents_path = testing::TempDir() + "/one.latents.safetensors";
  const RunResult whole = generator.run(test::job(), nullptr, options);
  Stopper stopper;
  const RunResult result =
      resumed(generator, test::job(), read_checkpoint(options.latents_path), stopper);
  EXPECT_EQ(result.framehash, whole.framehash);
  EXPECT_EQ(stopper.steps, 0);
  for (const StageSeconds& stage : result.stages) EXPECT_NE(stage.stage, "encode_text");
}

// A checkpoint whose seed or weight format differs is refused, and the message names the
// difference. So is one that lacks history that the solver reads.
TEST(Checkpoint, OfAnotherJobIsRefused) {
  const std::string path = file_of("other");
  Generator generator(kModel, options_of(DType::kF32));
  Request request = test::job();
  const Checkpoint kept = stopped_at(generator, request, 1, path);
  ++request.seed;
  Stopper stopper;
  expect_error(ErrorKind::kUsage, "seed is '7' there and '8' here",
               [&] { resumed(generator, request, read_checkpoint(path), stopper); });
  GeneratorOptions eight_bits = options_of(DType::kF32);
  eight_bits.weights = WeightFormat::kInt8;
  Generator other(kModel, eight_bits);
  expect_error(ErrorKind::kUsage, "weights is 'compute' there and 'int8' here",
               [&] { resumed(other, test::job(), read_checkpoint(path), stopper); });
  Checkpoint poor = read_checkpoint(path);
  poor.history.pop_back();
  EXPECT_THROW(resumed(generator, test::job(), std::move(poor), stopper), Error);
  EXPECT_EQ(stopper.steps, 0);
  remove_checkpoints(path);
}

// A file is refused if one bit is changed anywhere or if one byte is missing.
TEST(Checkpoint, DamageIsSeen) {
  const std::string path = file_of("damage"), broken = file_of("broken");
  Generator generator(kModel, options_of(DType::kF32));
  stopped_at(generator, test::job(), 1, path);
  std::ifstream file(path, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  const auto refused = [&](const std::string& changed) {
    std::ofstream(broken, std::ios::binary) << changed;
    return error_kind([&] { read_checkpoint(broken); }) == ErrorKind::kModel;
  };
  EXPECT_FALSE(refused(bytes));
  for (size_t at = 0; at < bytes.size(); at += bytes.size() / 60 + 1) {
    std::string changed = bytes;
    changed[at] ^= 4;
    // A space after the header's JSON may change to another character that JSON skips.
    if (bytes[at] != ' ') {
      EXPECT_TRUE(refused(changed)) << "byte " << at;
    }
  }
  for (size_t size = 0; size < bytes.size(); size += bytes.size() / 30 + 1)
    EXPECT_TRUE(refused(bytes.substr(0, size))) << size << " bytes";
  remove_checkpoints(path);
  remove_checkpoints(broken);
}

// Two checkpoints are kept, and none after the caller says that the result is complete.
TEST(Checkpoint, TwoGenerationsAreKept) {
  const std::string path = file_of("generations");
  Generator generator(kModel, options_of(DType::kF32));
  Stopper stopper;
  const RunOptions options = kept_options(stopper, path, 0);
  Request request = test::job();
  request.steps = 6;
  const RunResult result = generator.run(request, nullptr, options);
  EXPECT_EQ(result.checkpoints, 5);
  EXPECT_EQ(read_checkpoint(path).step, 5);
  EXPECT_EQ(read_checkpoint(older_checkpoint(path)).step, 4);
  remove_checkpoints(path);
  EXPECT_FALSE(fs::exists(path) || fs::exists(older_checkpoint(path)));
}

// A limit on file sizes simulates a full disk.
TEST(Checkpoint, AFullDiskCostsAWarningNotTheJob) {
  const std::string path = file_of("full");
  Generator generator(kModel, options_of(DType::kF32));
  const RunResult whole = generator.run(test::job(), nullptr);
  Stopper stopper;
  const RunOptions options = kept_options(stopper, path, 0);
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  const rlimit tiny{.rlim_cur = 100, .rlim_max = limit.rlim_max};
  setrlimit(RLIMIT_FSIZE, &tiny);
  const RunResult result = generator.run(test::job(), nullptr, options);
  setrlimit(RLIMIT_FSIZE, &limit);
  std::signal(SIGXFSZ, before);
  EXPECT_EQ(result.framehash, whole.framehash);
  ASSERT_EQ(stopper.warnings.size(), 1u);
  EXPECT_TRUE(contains(stopper.warnings[0], "the job goes on"));
  EXPECT_FALSE(fs::exists(path));
}

struct Ranked {
  RunResult result;      // the root's
  bool stopped = false;  // whether every rank stopped
  std::vector<CommCounters> counters;
};

// Runs the job on several ranks. The root's flag is set after `after` steps; the other ranks have a
// flag that is never set.
Ranked run_ranked(const Layout& layout, const Request& request, const std::string& path, int after,
                  std::shared_ptr<Checkpoint> from) {
  Ranked out;
  out.counters.resize(layout.ranks());
  std::atomic<int> stopped{0};
  Stopper stopper;
  stopper.after = after;
  std::atomic<bool> never{false};
  run_ranks(layout.ranks(), [&](Communicator& world) {
    Generator generator(kModel, options_of(DType::kF32), RankPlacement::of(world, layout));
    RunOptions options;
    const bool root = world.rank() == 0;
    options.stop = root ? &stopper.stop : &never;
    if (root) {
      options.listener = &stopper;
      options.checkpoint_path = path;
      options.checkpoint_seconds = 1e9;
      options.resume = std::move(from);
    }
    try {
      RunResult result = generator.run(request, nullptr, options);
      if (root) out.result = std::move(result);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kStopped) << error.what();
      ++stopped;
    }
    out.counters[world.rank()] = world.counters();
  });
  out.stopped = stopped == layout.ranks();
  EXPECT_TRUE(stopped == 0 || out.stopped) << to_string(layout) << ": " << stopped << " stopped";
  return out;
}

int64_t sent(const Ranked& ranked, Payload kind, int rank) {
  return ranked.counters[rank].sent[static_cast<size_t>(kind)].bytes;
}

// Ranks stop together, they write the same files as one rank, and every layout resumes from these
// to the bits of its own uninterrupted run.
TEST(Checkpoint, RanksStopTogetherAndGoOn) {
  const std::string path = file_of("ranks");
  Request request = test::job();
  request.steps = 4;
  const Generator one(kModel, options_of(DType::kF32));
  const LayoutLimits limits = one.layout_limits(one.resolve(request));
  request = one.resolve(request);
  int layouts = 0;
  for (const int ranks : {2, 4})
    for (const Layout& layout : legal_layouts(ranks, limits)) {
      ++layouts;
      const Ranked whole = run_ranked(layout, request, path, -1, nullptr);
      ASSERT_FALSE(whole.stopped);
      EXPECT_FALSE(fs::exists(path));
      const Ranked first = run_ranked(layout, request, path, 2, nullptr);
      ASSERT_TRUE(first.stopped) << to_string(layout);
      auto kept = std::make_shared<Checkpoint>(read_checkpoint(path));
      EXPECT_EQ(kept->step, 2);
      const auto latents = static_cast<int64_t>(kept->latent.view().bytes()) *
                           static_cast<int64_t>(1 + kept->history.size());
      const Ranked second = run_ranked(layout, request, path, -1, kept);
      ASSERT_FALSE(second.stopped);
      EXPECT_EQ(second.result.signature, whole.result.signature) << to_string(layout);
      EXPECT_EQ(second.result.framehash, whole.result.framehash) << to_string(layout);
      remove_checkpoints(path);

      // The root sends a decision at the start, before every step and before every chunk.
      const int64_t others = layout.ranks() - 1, chunks = 3;
      EXPECT_EQ(sent(whole, Payload::kControl, 0), others * 8 * (1 + request.steps + chunks));
      EXPECT_EQ(sent(first, Payload::kControl, 0), others * 8 * (1 + 3));
      EXPECT_EQ(sent(second, Payload::kControl, 0), others * 8 * (1 + 2 + chunks));
      // To resume, the root sends the whole state to every other rank.
      const bool last = layout[Axis::kLayers] == 1;
      const int64_t steps_back = last ? 0 : sent(whole, Payload::kLatent, 0);
      EXPECT_EQ(sent(second, Payload::kLatent, 0),
                others * latents + (last ? sent(whole, Payload::kLatent, 0) : steps_back));
    }
  EXPECT_GE(layouts, 15);
}

}  // namespace
}  // namespace weft::test
