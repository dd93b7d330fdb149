// Captions of many jobs: the language model is loaded once and kept while jobs fit beside it. The
// captions are those of a model that was loaded for each.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/command_line/flags.h"
#include "apps/generate/expand.h"
#include "apps/worker/job_team.h"
#include "engine/job/job_spec.h"
#include "tests/support/error_of.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

constexpr const char* kFolder = "models/pocket/language";

std::string caption_of(PromptExpander& expander, const std::string& prompt,
                       double temperature = 0) {
  ExpandOptions options;
  options.sampling = {.temperature = temperature, .seed = 7};
  options.max_tokens = 100;
  return expander.expand(std::vector{prompt}, options).front();
}

TEST(PromptExpander, OneLoadWritesWhatALoadForEachWrites) {
  PromptExpander kept(kFolder);
  EXPECT_EQ(kept.held_bytes(), 0u);
  EXPECT_EQ(kept.loads(), 0);
  // The second needs more positions and pages than the first has made room for.
  const std::string longer = "a ring, and a ring, and a ring, and a small yellow star, circling";
  for (const double temperature : {0.0, 1.0})
    for (const std::string& prompt : {std::string("ball"), longer, std::string("ball")}) {
      PromptExpander fresh(kFolder);
      EXPECT_EQ(caption_of(kept, prompt, temperature), caption_of(fresh, prompt, temperature));
    }
  EXPECT_EQ(kept.loads(), 1);
  const uint64_t held = kept.held_bytes();
  EXPECT_GT(held, 1u << 20);
  kept.release();
  EXPECT_EQ(kept.held_bytes(), 0u);
  (void)caption_of(kept, "ball");
  EXPECT_EQ(kept.loads(), 2);
  EXPECT_LE(kept.held_bytes(), held);
}

TEST(PromptExpander, SeveralPromptsJoinAModelThatHasServedOne) {
  const std::vector<std::string> prompts{"ball", "white ring", "a small yellow star, circling"};
  PromptExpander kept(kFolder), fresh(kFolder);
  (void)caption_of(kept, "ball");
  EXPECT_EQ(kept.expand(prompts, {}), fresh.expand(prompts, {}));
  EXPECT_EQ(kept.loads(), 1);
}

TEST(PromptExpander, TheLimitHoldsForAHeldModelToo) {
  PromptExpander expander(kFolder);
  (void)caption_of(expander, "ball");
  ExpandOptions options;
  options.memory_limit = expander.held_bytes() / 2;
  test::expect_error(ErrorKind::kMemory, "expanding prompts needs",
                     [&] { (void)expander.expand(std::vector<std::string>{"ball"}, options); });
}

// Another thread uses the model meanwhile.
TEST(PromptExpander, WhoWaitsForTheModelHeedsAStop) {
  PromptExpander expander(kFolder);
  std::atomic<bool> writes_no_more{false}, stopped{true};
  ExpandOptions raised;
  raised.stop = &stopped;
  const std::vector<std::string> prompts{"ball"};
  const auto waits = [&] { (void)expander.expand(prompts, raised); };
  test::expect_error(ErrorKind::kStopped, "stopped while prompts were expanded", waits);
  EXPECT_EQ(expander.loads(), 0);  // it looks before the weights are loaded
  std::thread writer([&] {
    ExpandOptions options;
    options.stop = &writes_no_more;
    while (!writes_no_more) try {
        (void)expander.expand(std::vector<std::string>(64, "ball"), options);
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kStopped);
      }
  });
  while (expander.loads() == 0) std::this_thread::yield();
  test::expect_error(ErrorKind::kStopped, "stopped while prompts were expanded", waits);
  expander.release(&stopped);
  EXPECT_GT(expander.held_bytes(), 0u);
  writes_no_more = true;
  writer.join();
  expander.release();
  EXPECT_EQ(expander.held_bytes(), 0u);
}

// Jobs of a team, which draws as a server's threads, a worker and a batch with a store do.
class CaptionedJobs : public testing::Test {
 protected:
  CaptionedJobs() { fs::create_directories(folder_); }
  ~CaptionedJobs() override { fs::remove_all(folder_); }

  void begin(const Names& more = {}) {
    Names words{"--model", "models/pocket", "--threads",       "1",
                "--dtype", "f32",           "--expand-prompt", "auto"};
    words.insert(words.end(), more.begin(), more.end());
    team_.reset();
    flags_ = std::make_unique<Flags>(Flags::parse(kGenerate, words));
    expander_ = expander_of(*flags_);
    team_ = std::make_unique<JobTeam>(*flags_, expander_);
  }
  // Returns the caption; "" where the job wants none.
  std::string draw(bool captioned, int width = 64) {
    const std::string name = folder_ + std::to_string(count_++) + ".png";
    nlohmann::json job{{"prompt", "orange ring"}, {"width", width}, {"height", 64},
                       {"num_frames", 1},         {"steps", 1},     {"seed", 3}};
    if (captioned) job["expand_prompt"] = true;
    const nlohmann::json done =
        nlohmann::json::parse(team_->draw({job.dump(), name}, silence_, never_));
    return done.value("prompt", "");
  }

  struct Silence final : ProgressListener {
    void progress(const Progress&) override {}
  } silence_;
  const std::atomic<bool> never_{false};
  const std::string folder_ = testing::TempDir() + "captions_" + std::to_string(getpid()) + "/";
  std::unique_ptr<Flags> flags_;
  std::shared_ptr<PromptExpander> expander_;
  std::unique_ptr<JobTeam> team_;
  int count_ = 0;
};

TEST_F(CaptionedJobs, LoadTheLanguageModelOnce) {
  for (const Names& ranks : {Names{}, Names{"--ranks", "2", "--layout", "tensor=2"}}) {
    begin(ranks);
    team_->warm_up(never_);
    const std::string caption = draw(true);
    EXPECT_NE(caption.find("orange ring"), std::string::npos);
    EXPECT_EQ(draw(false), "");
    EXPECT_EQ(draw(true), caption);
    EXPECT_EQ(expander_->loads(), 1);
    EXPECT_GT(expander_->held_bytes(), 0u);
  }
}

TEST_F(CaptionedJobs, TeamsShareTheLanguageModel) {
  begin();
  const std::string caption = draw(true);
  team_ = std::make_unique<JobTeam>(*flags_, expander_, team_->runner().generator().model());
  team_->warm_up(never_);
  EXPECT_EQ(draw(true), caption);
  EXPECT_EQ(expander_->loads(), 1);
}

// The limit is enough for the job alone, and for the language model alone.
TEST_F(CaptionedJobs, FreeTheLanguageModelWhereAJobNeedsItsRoom) {
  begin();
  (void)draw(true);
  const uint64_t needed = team_->runner().plan().high_water, held = expander_->held_bytes();
  begin({"--memory-limit", std::to_string(std::max(needed, held) + held / 2)});
  const std::string caption = draw(true);
  EXPECT_EQ(expander_->held_bytes(), 0u);
  EXPECT_EQ(draw(true), caption);
  EXPECT_EQ(expander_->loads(), 2);
}

// The limit is just enough for both. With offloaded layers, too, the language model stays.
TEST_F(CaptionedJobs, KeepTheLanguageModelWhereBothFit) {
  for (const Names& mode : {Names{}, Names{"--resident-layers", "2"}, Names{"--mode", "memory"}}) {
    begin(mode);
    (void)draw(true);
    Names limited = mode;
    limited.insert(limited.end(),
                   {"--memory-limit",
                    std::to_string(team_->runner().plan().high_water + expander_->held_bytes())});
    begin(limited);
    const std::string caption = draw(true);
    EXPECT_GT(expander_->held_bytes(), 0u);
    EXPECT_EQ(draw(true), caption);
    EXPECT_EQ(expander_->loads(), 1);
  }
}

// Weights that stay make what is free less. Jobs after the first are not planned with less for it.
TEST_F(CaptionedJobs, ArePlannedWithTheMemoryThatWasFreeAtTheStart) {
  for (const Names& ranks : {Names{}, Names{"--ranks", "2", "--layout", "tensor=2"}}) {
    begin(ranks);
    (void)draw(false);
    const uint64_t available = team_->runner().plan().available;
    const std::vector<char> ballast(64 << 20, 1);
    (void)draw(false, 96);
    EXPECT_EQ(team_->runner().plan().available, available);
    EXPECT_EQ(ballast.back(), 1);
  }
}

}  // namespace
}  // namespace weft
