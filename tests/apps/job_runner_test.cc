// JobRunner keeps its ranks from job to job, whatever layout each is drawn under.
#include "engine/runner/job_runner.h"

#include <gtest/gtest.h>

#include "apps/command_line/flags.h"
#include "apps/generate/runner_flags.h"
#include "tests/apps/cli_testing.h"

namespace weft {
namespace {

using Names = std::vector<std::string>;

// Draws pictures with ranks that stay, under the layouts that a simulation chooses.
class KeptRanks : public test::Cli {
 protected:
  void begin(const Names& more) {
    Names words{"--model", test::kPocket, "--threads", "1", "--dtype", "f32", "--no-metadata"};
    words.insert(words.end(), more.begin(), more.end());
    flags_ = std::make_unique<Flags>(Flags::parse(kGenerate, words));
    runner_ = std::unique_ptr<JobRunner>(new JobRunner(job_runner(*flags_)));
  }
  Drawing drawing(double guidance, int64_t frames = 5) {
    Request request;
    request.prompt = "a big red ball";
    request.width = request.height = 64;
    request.frames = frames;
    request.steps = 2;
    request.seed = 3;
    request.guidance_scale = guidance;
    Drawing out{.spec = {}, .path = path(std::to_string(count_++) + ".mp4")};
    out.spec.request = runner_->generator().resolve(request);
    out.spec.seeded = true;
    return out;
  }
  RunResult draw(const std::vector<Drawing>& drawings) {
    RunResult result;
    runner_->arrange(drawings);
    runner_->draw({.all = drawings, .listener = &silence_},
                  [&](const Finished& done) { result = done.result; });
    return result;
  }
  // The frames that ranks of their own draw under a layout. Ends the runner.
  std::string fresh_hash(const Layout& layout, double guidance) {
    begin({"--ranks", std::to_string(layout.ranks()), "--layout", to_string(layout)});
    return draw({drawing(guidance)}).framehash;
  }

  struct Silence final : ProgressListener {
    void progress(const Progress&) override {}
  } silence_;
  std::unique_ptr<Flags> flags_;
  std::unique_ptr<JobRunner> runner_;
  int count_ = 0;
};

// A guided job is split by cfg, which is not legal for a job without guidance.
TEST_F(KeptRanks, DrawUnderEveryLayoutWhatFreshOnesDraw) {
  for (const Names& more : {Names{"--ranks", "2", "--link-gbit", "800", "--link-ms", "0.001"},
                            Names{"--ranks", "4", "--link-gbit", "800", "--link-ms", "0.001"}}) {
    begin(more);
    runner_->keep_ranks();
    const RunResult first = draw({drawing(5)});
    const Layout with = runner_->layout();
    EXPECT_EQ(first.loaded, (Names{"text_encoder", "transformer", "vae"}));
    const RunResult second = draw({drawing(1)});
    const Layout without = runner_->layout();
    const std::string about = to_string(with) + " -> " + to_string(without);
    EXPECT_EQ(with[Axis::kCfg], 2) << about;
    EXPECT_EQ(without[Axis::kCfg], 1) << about;
    const bool shared = with[Axis::kTensor] == without[Axis::kTensor] &&
                        with[Axis::kLayers] == without[Axis::kLayers];
    EXPECT_EQ(second.loaded, (shared ? Names() : Names{"transformer", "vae"})) << about;
    const RunResult third = draw({drawing(5)});
    EXPECT_EQ(runner_->layout(), with);
    EXPECT_EQ(third.loaded, second.loaded);
    EXPECT_EQ(third.framehash, first.framehash);
    EXPECT_EQ(first.framehash, fresh_hash(with, 5)) << about;
    EXPECT_EQ(second.framehash, fresh_hash(without, 1)) << about;
  }
}

// The drawings of one call are shared by two replicas, which then become one rank's branches.
TEST_F(KeptRanks, ReplicasBecomeOneReplica) {
  const Names more{"--ranks", "2", "--link-gbit", "0.1", "--link-ms", "10"};
  begin(more);
  runner_->keep_ranks();
  draw({drawing(1), drawing(1), drawing(1)});
  EXPECT_EQ(runner_->layout()[Axis::kData], 2);
  const std::string hash = draw({drawing(5)}).framehash;
  const Layout layout = runner_->layout();
  EXPECT_EQ(layout[Axis::kData], 1);
  EXPECT_EQ(hash, fresh_hash(layout, 5)) << to_string(layout);
}

// A failure within a drawing ends the ranks; the next ones load anew.
TEST_F(KeptRanks, AFailureEndsThem) {
  begin({"--ranks", "2"});
  runner_->keep_ranks();
  const std::string hash = draw({drawing(5)}).framehash;
  const std::atomic<bool> stop{true};
  const std::vector<Drawing> stopped{drawing(5)};
  runner_->arrange(stopped);
  EXPECT_THROW(
      runner_->draw({.all = stopped, .listener = &silence_, .stop = &stop}, [](const Finished&) {}),
      Error);
  const RunResult again = draw({drawing(5)});
  EXPECT_EQ(again.loaded.size(), 3u);
  EXPECT_EQ(again.framehash, hash);
}

}  // namespace
}  // namespace weft
