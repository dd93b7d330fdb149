// Whole generations under --method queue: the frames do not depend on the number of pipeline stages
// nor on who decodes, memory is as planned, prompts change, and what cannot work is refused.
#include <gtest/gtest.h>

#include <numeric>

#include "parallel/transport/local.h"
#include "tests/engine/small_job.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

// 41 frames are eleven latent frames: segments of 2 + 1 and four times 2.
Request queue_job() {
  Request request = job();
  request.frames = 41;
  request.steps = 9;
  request.method = parse_method("queue:block=2,context=1", "method");
  return request;
}

Layout parsed_layout(const std::string& text, int ranks, const Request& request) {
  const Generator generator(kModel, options_of(DType::kF32));
  return parse_layout(text, ranks, generator.layout_limits(generator.resolve(request)));
}

RunResult run_queue_job(const Request& request, const Layout& layout, DType dtype = DType::kF32,
                        const LocalOptions& local = {}) {
  RunResult result;
  run_ranks(
      layout.ranks(),
      [&](Communicator& world) {
        Generator generator(kModel, options_of(dtype), RankPlacement::of(world, layout));
        RunResult own = generator.run(request, nullptr);
        if (world.rank() == 0) result = std::move(own);
      },
      local);
  return result;
}

std::string queue_refusal(const Request& request) {
  return error_of([&] { Generator(kModel, options_of(DType::kF32)).resolve(request); },
                  ErrorKind::kUsage);
}

TEST(QueueJob, StagesAndDecoderChangeNoBit) {
  const Request request = queue_job();
  const RunResult one = run_queue_job(request, {});
  EXPECT_EQ(one.frames, 41);
  EXPECT_NE(one.framehash, run_queue_job(job(), {}).framehash);
  const std::pair<int, const char*> layouts[] = {{2, "layers=2"},
                                                 {2, "layers=2,decode_rank=1"},
                                                 {2, "auto"},
                                                 {4, "cfg=2,layers=2"},
                                                 {2, "cfg=2,decode_rank=1"}};
  for (const auto& [ranks, text] : layouts)
    for (const uint64_t seed : {0, 5}) {
      const Layout layout = parsed_layout(text, ranks, request);
      const RunResult result = run_queue_job(
          request, layout, DType::kF32,
          {.rendezvous = seed > 0, .delay_seed = seed, .max_delay_us = seed > 0 ? 200 : 0});
      EXPECT_EQ(result.framehash, one.framehash) << to_string(layout);
      EXPECT_EQ(result.frames, 41) << to_string(layout);
    }
}

TEST(QueueJob, NoiseOfItsOwnIsAnotherVideo) {
  Request request = queue_job();
  const RunResult pool = run_queue_job(request, {});
  request.noise = NoiseMode::kIid;
  const RunResult iid = run_queue_job(request, {});
  EXPECT_NE(iid.framehash, pool.framehash);
  EXPECT_EQ(run_queue_job(request, parsed_layout("layers=2", 2, request)).framehash, iid.framehash);
}

// Hidden rows of bf16 are rounded where stages meet, unless they are sent in f32.
TEST(QueueJob, HiddenRowsOfF32ChangeNoBitOfBf16) {
  const Request request = queue_job();
  const Layout layout = parsed_layout("layers=2", 2, request);
  const std::string one = run_queue_job(request, {}, DType::kBF16).framehash;
  const auto with = [&](DType wire) {
    std::string hash;
    run_ranks(2, [&](Communicator& world) {
      GeneratorOptions options = options_of(DType::kBF16);
      options.wire_dtype = wire;
      Generator generator(kModel, options, RankPlacement::of(world, layout));
      const RunResult result = generator.run(request, nullptr);
      if (world.rank() == 0) hash = result.framehash;
    });
    return hash;
  };
  EXPECT_EQ(with(DType::kF32), one);
  EXPECT_NE(with(DType::kBF16), one);
  GeneratorOptions options = options_of(DType::kF32);
  options.wire_dtype = DType::kBF16;
  EXPECT_THROW(Generator(kModel, options).resolve(job()), Error);
}

TEST(QueueJob, ItsLayoutHasOneEncoderAndOneDecoder) {
  const Request request = queue_job();
  EXPECT_EQ(to_string(parsed_layout("auto", 2, request)), "layers=2,text_ranks=1,decode_rank=0");
  EXPECT_THROW(parsed_layout("ring=2", 2, request), Error);
  EXPECT_THROW(parsed_layout("layers=2,vae_ranks=2", 2, request), Error);
}

TEST(QueueJob, MemoryIsAsPlanned) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const int64_t frames : {41, 121}) {
      Request request = queue_job();
      request.frames = frames;
      Generator generator(kModel, options_of(dtype));
      const auto planned =
          static_cast<double>(generator.plan(generator.resolve(request)).high_water);
      const auto taken = static_cast<double>(generator.run(request, nullptr).memory_high_water);
      EXPECT_LE(planned, 1.05 * taken) << frames;
      EXPECT_GE(planned, 0.99 * taken) << frames;
    }
}

TEST(QueueJob, MemoryOfCheckpointsIsAsPlanned) {
  Request request = queue_job();
  request.frames = 121;
  GeneratorOptions options = options_of(DType::kF32);
  options.keeping = Keeping::kCheckpoints;
  Generator generator(kModel, options);
  const auto planned = static_cast<double>(generator.plan(generator.resolve(request)).high_water);
  const std::atomic<bool> stop = false;
  RunOptions run_options;
  run_options.stop = &stop;
  run_options.checkpoint_path = testing::TempDir() + "queue_job_4.checkpoint.safetensors";
  run_options.checkpoint_seconds = 0;
  const RunResult result = generator.run(request, nullptr, run_options);
  EXPECT_EQ(result.checkpoints, 9 + 15 - 1);
  EXPECT_EQ(result.framehash, run_queue_job(request, {}).framehash);
  const auto taken = static_cast<double>(result.memory_high_water);
  EXPECT_LE(planned, 1.05 * taken);
  EXPECT_GE(planned, 0.99 * taken);
  remove_checkpoints(run_options.checkpoint_path);
}

// Two prompts of the schedule are longer than Request::prompt, and all three are shown together.
TEST(QueueJob, MemoryOfScheduledPromptsIsAsPlanned) {
  Request request = queue_job();
  std::string text;
  for (int i = 0; i < 40; ++i) text += "a big red ball ";
  request.schedule = {{0.5, text}, {1, text + "again"}};
  Generator generator(kModel, options_of(DType::kF32));
  const auto planned = static_cast<double>(generator.plan(generator.resolve(request)).high_water);
  const auto taken = static_cast<double>(generator.run(request, nullptr).memory_high_water);
  EXPECT_LE(planned, 1.05 * taken);
  EXPECT_GE(planned, 0.99 * taken);
}

// The queue is at its longest with 41 frames already.
TEST(QueueJob, MemoryDoesNotGrowWithTheVideo) {
  Request request = queue_job();
  request.frames = 81;
  const uint64_t some = run_queue_job(request, {}).memory_high_water;
  request.frames = 161;
  EXPECT_LE(run_queue_job(request, {}).memory_high_water, some + some / 100);
}

TEST(QueueJob, PromptsChangeAtTheirBlock) {
  Request request = queue_job();
  const RunResult before = run_queue_job(request, {});
  request.schedule = {{1000, "a blue square"}};  // after the end
  EXPECT_EQ(run_queue_job(request, {}).framehash, before.framehash);
  request.schedule = {{1, "a blue square"}};
  const RunResult changed = run_queue_job(request, {});
  EXPECT_NE(changed.framehash, before.framehash);
  EXPECT_EQ(run_queue_job(request, parsed_layout("layers=2", 2, request)).framehash,
            changed.framehash);
  request.schedule = {{0.01, "a blue square"}};  // from the second segment on
  EXPECT_NE(run_queue_job(request, {}).framehash, changed.framehash);
}

// Keeps the warnings of prompts that no segment shows.
struct Unshown final : ProgressListener {
  std::vector<std::string> lines;
  void progress(const Progress&) override {}
  void warning(const std::string& line) override {
    if (line.find("is never shown") != std::string::npos) lines.push_back(line);
  }
};

std::vector<std::string> warnings_of(const Request& request) {
  Unshown warnings;
  RunOptions options;
  options.listener = &warnings;
  Generator(kModel, options_of(DType::kF32)).run(request, nullptr, options);
  return warnings.lines;
}

// The first prompt is shown until the first of the schedule; one after the last segment's first
// frame and one whose turn is over before a segment begins are never shown, which a warning says.
TEST(QueueJob, WarnsOfPromptsThatAreNeverShown) {
  Request request = queue_job();
  request.fps = 8;  // the segments begin at 0, 9, 17, 25 and 33 frames
  EXPECT_TRUE(warnings_of(request).empty());
  const std::string before = run_queue_job(request, {}).framehash;
  request.schedule = {{1.5, "a blue square"}, {4.125, "a white ring"}};
  EXPECT_TRUE(warnings_of(request).empty());
  const std::string changed = run_queue_job(request, {}).framehash;
  EXPECT_NE(changed, before);
  request.schedule = {{1.25, "a green star"},
                      {1.5, "a blue square"},
                      {4.125, "a white ring"},
                      {4.25, "a red ball"}};
  EXPECT_EQ(run_queue_job(request, {}).framehash, changed);
  const std::vector<std::string> lines = warnings_of(request);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_TRUE(lines[0].starts_with("the prompt at 1.25 s is never shown")) << lines[0];
  EXPECT_TRUE(lines[1].starts_with("the prompt at 4.25 s is never shown")) << lines[1];
}

TEST(QueueJob, AShortVideoIsCutFromOneBlock) {
  Request request = queue_job();
  request.frames = 5;
  EXPECT_EQ(run_queue_job(request, {}).frames, 5);
  EXPECT_EQ(run_queue_job(request, parsed_layout("layers=2", 2, request)).framehash,
            run_queue_job(request, {}).framehash);
}

TEST(QueueJob, StopsOnAllRanks) {
  const Request request = queue_job();
  const Layout layout = parsed_layout("layers=2", 2, request);
  run_ranks(2, [&](Communicator& world) {
    Generator generator(kModel, options_of(DType::kF32), RankPlacement::of(world, layout));
    const std::atomic<bool> stop{true};
    RunOptions options;
    options.stop = &stop;
    thrown_error([&] { generator.run(request, nullptr, options); }, ErrorKind::kStopped);
  });
}

// Asks for a stop when a turn begins.
struct StopsAt final : ProgressListener {
  StopsAt(std::atomic<bool>& flag, int of_turn) : stop(flag), turn(of_turn) {}
  std::atomic<bool>& stop;
  const int turn;
  void progress(const Progress& p) override {
    if (p.stage == "denoise" && p.turn >= turn) stop = true;
  }
};

// Runs a job that keeps checkpoints at `path` until it is stopped in a turn, or to its end (-1).
std::optional<RunResult> run_queue_until(int turn, const Request& request, const Layout& layout,
                                         const std::string& path,
                                         const std::shared_ptr<Checkpoint>& resume) {
  std::optional<RunResult> result;
  run_ranks(layout.ranks(), [&](Communicator& world) {
    Generator generator(kModel, options_of(DType::kF32), RankPlacement::of(world, layout));
    std::atomic<bool> stop = false;
    StopsAt listener(stop, turn < 0 ? 1 << 30 : turn);
    RunOptions options;
    options.stop = &stop;
    if (world.rank() == 0) {
      options.listener = &listener;
      options.checkpoint_path = path;
      options.resume = resume;
    }
    try {
      RunResult own = generator.run(request, nullptr, options);
      if (world.rank() == 0) result = std::move(own);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kStopped) throw;
    }
  });
  return result;
}

TEST(QueueJob, AStoppedJobGoesOnUnderAnyLayout) {
  const Request request = queue_job();
  const RunResult whole = run_queue_job(request, {});
  const std::string path = testing::TempDir() + "queue_job.checkpoint.safetensors";
  const std::pair<int, const char*> layouts[] = {
      {1, "auto"}, {2, "layers=2,decode_rank=1"}, {2, "layers=2"}, {2, "cfg=2,decode_rank=1"}};
  size_t next = 0;
  for (const int turn : {1, 4, 8, 9, 11, 12})  // fill, first frames, drain
    for (const auto& [ranks, text] : layouts) {
      remove_checkpoints(path);
      const Layout layout = ranks == 1 ? Layout{} : parsed_layout(text, ranks, request);
      EXPECT_FALSE(run_queue_until(turn, request, layout, path, nullptr))
          << text << " turn " << turn;
      const auto kept = std::make_shared<Checkpoint>(read_checkpoint(path));
      EXPECT_GT(kept->step, turn);
      EXPECT_EQ(kept->total, 14);
      const auto& [other_ranks, other] = layouts[++next % std::size(layouts)];
      const Layout then = other_ranks == 1 ? Layout{} : parsed_layout(other, other_ranks, request);
      const auto result = run_queue_until(-1, request, then, path, kept);
      ASSERT_TRUE(result);
      EXPECT_EQ(result->framehash, whole.framehash)
          << text << " then " << other << " turn " << turn;
      EXPECT_EQ(result->frames, whole.frames);
      if (then.decode_rank <= 0) {
        EXPECT_EQ(result->signature, whole.signature) << text;
      }
    }
  remove_checkpoints(path);
}

TEST(QueueJob, ADamagedOrForeignCheckpointIsRefused) {
  const Request request = queue_job();
  const std::string path = testing::TempDir() + "queue_job_2.checkpoint.safetensors";
  run_queue_until(9, request, {}, path, nullptr);
  const auto refused = [&](const Request& by, const auto& change) {
    const auto kept = std::make_shared<Checkpoint>(read_checkpoint(path));
    change(*kept);
    return error_of([&] { run_queue_until(-1, by, {}, path, kept); });
  };
  EXPECT_EQ(refused(request, [](Checkpoint&) {}), "");
  run_queue_until(9, request, {}, path, nullptr);
  Request other = request;
  other.seed = 8;
  EXPECT_TRUE(contains(refused(other, [](Checkpoint&) {}), "another job: seed"));
  EXPECT_TRUE(contains(refused(request, [](Checkpoint& kept) { ++kept.step; }), "its latent is"));
  EXPECT_TRUE(
      contains(refused(request, [](Checkpoint& kept) { kept.history.pop_back(); }), "history"));
  EXPECT_TRUE(
      contains(refused(request, [](Checkpoint& kept) { kept.written.clear(); }), "has no frames"));
  remove_checkpoints(path);
}

// Keeps the hash of the first frames.
struct FirstFrames final : FrameSink {
  explicit FirstFrames(int wanted) : count(wanted) {}
  int count;
  FrameHash hash;
  void push(const Frame& frame) override {
    if (count-- > 0) hash.add(frame);
  }
  std::string finish() override { return ""; }
};

// Segments do not see those that enter once they have left the queue. So an endless video that was
// stopped is the beginning of any that is long enough.
TEST(QueueJob, AnEndlessVideoEndsWhereItIsStopped) {
  Request request = queue_job();
  request.frames = 20001;
  request.endless = true;
  const std::string path = testing::TempDir() + "queue_job_3.checkpoint.safetensors";
  std::map<int, std::string> hashes;  // by frames
  for (const char* text : {"auto", "layers=2", "layers=2,decode_rank=1"}) {
    const Layout layout = text == std::string("auto") ? Layout{} : parsed_layout(text, 2, request);
    EXPECT_FALSE(run_queue_until(5, request, layout, path, nullptr))
        << text;  // no frame is there yet
    const auto result = run_queue_until(11, request, layout, path, nullptr);
    ASSERT_TRUE(result) << text;
    EXPECT_GT(result->frames, 9);
    EXPECT_LT(result->frames, 60);
    hashes.emplace(result->frames, result->framehash);
    EXPECT_EQ(hashes.at(result->frames), result->framehash) << text;
  }
  remove_checkpoints(path);
  const auto [frames, hash] = *hashes.begin();
  Request longer = queue_job();
  longer.frames = 161;
  FirstFrames first(frames);
  Generator(kModel, options_of(DType::kF32)).run(longer, &first);
  EXPECT_EQ(first.hash.hex(), hash);
  request.method = parse_method("full", "method");
  EXPECT_TRUE(contains(queue_refusal(request), "legal with it: queue"));
}

// Layouts that parse_layout does not make: bands of the VAE would wait for each other.
TEST(QueueJob, SeveralDecodersAreRefused) {
  Layout layout;
  layout[Axis::kLayers] = 2;
  run_ranks(2, [&](Communicator& world) {
    Generator generator(kModel, options_of(DType::kF32), RankPlacement::of(world, layout));
    EXPECT_THROW(generator.run(queue_job(), nullptr), Error);
  });
}

struct DenoiseEvents final : ProgressListener {
  std::vector<Progress> all;
  void progress(const Progress& progress) override {
    if (progress.stage == "denoise") all.push_back(progress);
  }
};

// Nine steps of eleven latent frames in five segments, of which the first is done after 35 passes.
TEST(QueueJob, ProgressCountsForwardsAndBlocks) {
  DenoiseEvents events;
  RunOptions options;
  options.listener = &events;
  Request request = queue_job();
  Generator(kModel, options_of(DType::kF32)).run(request, nullptr, options);
  // Nine steps of five segments, each with two forwards, in 14 turns.
  ASSERT_EQ(events.all.size(), 1 + 90 + 14u);
  EXPECT_EQ(events.all.back().step, 90);
  EXPECT_EQ(events.all.back().turn, 13);
  EXPECT_EQ(events.all.back().finished_segments, 5);
  for (size_t i = 1; i < events.all.size(); ++i) {
    const Progress &now = events.all[i], &before = events.all[i - 1];
    EXPECT_EQ(now.step + now.turn, before.step + before.turn + (i > 1)) << i;
    EXPECT_EQ(now.total, 90);
    EXPECT_EQ(now.segments, 5);
    EXPECT_EQ(now.finished_segments, std::max(now.turn - 8, 0));
    EXPECT_EQ(now.first_frame_seconds > 0, now.step > 0 && now.step < 70) << i;
    EXPECT_LE(now.first_frame_seconds, now.eta_seconds);
  }
}

struct Warnings final : ProgressListener {
  std::vector<std::string> lines;
  void progress(const Progress&) override {}
  void warning(const std::string& line) override { lines.push_back(line); }
};

TEST(QueueJob, WarnsOfStagesThatWait) {
  Request request = queue_job();
  Warnings alone;
  RunOptions options;
  options.listener = &alone;
  Generator(kModel, options_of(DType::kF32)).run(request, nullptr, options);
  EXPECT_TRUE(alone.lines.empty());
  request.frames = 17;  // two segments
  const Layout layout = parsed_layout("layers=2", 2, request);
  run_ranks(2, [&](Communicator& world) {
    Warnings seen;
    RunOptions with;
    with.listener = &seen;
    Generator(kModel, options_of(DType::kF32), RankPlacement::of(world, layout))
        .run(request, nullptr, with);
    EXPECT_EQ(seen.lines.size(), world.rank() == 0 ? 1u : 0u);
  });
}

TEST(QueueJob, WhatCannotWorkIsRefused) {
  Request request = queue_job();
  EXPECT_EQ(queue_refusal(request), "");
  request.steps = 8;
  EXPECT_TRUE(contains(queue_refusal(request), "steps is 8; legal are values from 9 on"));
  request = queue_job();
  request.method = parse_method("queue:block=2,context=3", "method");
  EXPECT_TRUE(contains(queue_refusal(request), "context is 3"));
  request = job();
  request.schedule = {{1, "a blue square"}};
  EXPECT_TRUE(contains(queue_refusal(request), "a prompt schedule needs blocks"));
}

}  // namespace
}  // namespace weft::test
