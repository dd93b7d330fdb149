// Runs the binary on a machine whose calls fail. Checks exit codes, the error line, and which files
// remain.
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/apps/cli_testing.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using test::Cli, test::kJob, test::kModel, test::lines, test::Outcome;

class Faulty : public Cli {
 protected:
  // Runs one job with the fault rule active from the start.
  Outcome generate(const std::string& rule, const std::string& name,
                   const std::string& model = kModel) {
    setenv("INJECT_FAULT", rule.c_str(), 1);
    setenv("LD_PRELOAD", WEFT_INJECT_LIBRARY, 1);
    // The sanitizer's library checks that it is the first one, but works after ours, too.
    setenv("ASAN_OPTIONS", "verify_asan_link_order=0", 1);
    const Outcome outcome =
        test::run("generate --model " + model + kJob + "-p x -q -o " + path(name));
    for (const char* variable : {"INJECT_FAULT", "LD_PRELOAD", "ASAN_OPTIONS"}) unsetenv(variable);
    return outcome;
  }
  void expect(const Outcome& outcome, int code, const std::string& part) {
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_EQ(lines(outcome.err), 1u) << outcome.err;
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
    EXPECT_TRUE(outcome.out.empty()) << outcome.out;
  }
};

TEST_F(Faulty, AFullOrBrokenDiskExits7AndKeepsTheLatents) {
  const std::map<std::string, std::string> rules{{"write:.a.part:1:ENOSPC", "No space left"},
                                                 {"write:.a.part:2:EIO", "Input/output"},
                                                 {"fsync:.a.whole:1:ENOSPC", "No space left"},
                                                 {"rename:.a.whole:1:EROFS", "Read-only"},
                                                 {"write:.a.whole:1:EDQUOT", "quota"}};
  for (const auto& [rule, part] : rules) {
    SCOPED_TRACE(rule);
    const Outcome outcome = generate(rule, "a.mp4");
    expect(outcome, 7, part);
    if (rule.starts_with("write:.a.part:1")) {  // the container's first bytes: nothing ran yet
      EXPECT_TRUE(files().empty());
      continue;
    }
    EXPECT_NE(outcome.err.find(path("a.mp4.latents.safetensors")), std::string::npos)
        << outcome.err;
    EXPECT_EQ(files(), (std::vector<std::string>{"a.mp4.latents.safetensors"}));
    fs::remove(path("a.mp4.latents.safetensors"));
  }
  // Pictures are encoded in memory and written when they are complete.
  expect(generate("write:.b.part:1:ENOSPC", "b", kModel + " --frames png"), 7, "No space left");
  EXPECT_EQ(files().size(), 1u);
}

TEST_F(Faulty, AFailedJobHasItsTrace) {
  const std::string traced = kModel + " --trace " + path("t.json");
  expect(generate("write:.a.part:2:EIO", "a.mp4", traced), 7, "Input/output");
  const nlohmann::json trace = nlohmann::json::parse(std::ifstream(path("t.json")));
  int steps = 0;
  for (const nlohmann::json& event : trace["traceEvents"])
    steps += event["name"].get<std::string>().starts_with("step");
  EXPECT_EQ(steps, 2);
  // If writing the trace fails, too, the job's own error and exit code are reported.
  fs::remove(path("t.json"));
  const Outcome both = generate("write:.:2:EIO", "b.mp4", traced);
  EXPECT_EQ(both.code, 7);
  EXPECT_NE(both.err.find("b.mp4.latents.safetensors"), std::string::npos) << both.err;
  EXPECT_FALSE(fs::exists(path("t.json")));
}

TEST_F(Faulty, LatentsThatCannotBeKeptExit7) {
  expect(generate("write:latents:1:ENOSPC", "a.mp4"), 7, "No space left");
  EXPECT_TRUE(files().empty());
}

// The clip exists by then. It is kept, and so are the latents.
TEST_F(Faulty, ASidecarThatCannotBeWrittenExits7) {
  expect(generate("write:.a.mp4.part.json:1:ENOSPC", "a.mp4"), 7, "No space left");
  EXPECT_EQ(files(), (std::vector<std::string>{"a.mp4", "a.mp4.latents.safetensors"}));
}

TEST_F(Faulty, AMissingEncoderExits7BeforeAnythingIsComputed) {
  expect(generate("encoder:libx264:1:missing", "a.mp4"), 7, "no video encoder 'libx264'");
  EXPECT_TRUE(files().empty());
}

TEST_F(Faulty, WeightsThatCannotBeReadExit3) {
  for (const char* rule : {"open:transformer/diffusion:1:EMFILE", "mmap:vae/diffusion:1:ENOMEM",
                           "read:spiece.model:1:EIO", "open:config.json:1:EIO"}) {
    SCOPED_TRACE(rule);
    expect(generate(rule, "a.mp4"), 3, "cannot be");
    EXPECT_TRUE(files().empty());
  }
}

TEST_F(Faulty, WeightsCutWhileTheyAreMappedExit3) {
  fs::copy(kModel, path("model"), fs::copy_options::recursive);
  int cut_in_use = 0;
  for (const char* part : {"transformer/diffusion", "vae/diffusion", "text_encoder/model"}) {
    for (int nth = 1; nth <= 3; ++nth) {  // a file is opened for its header and for its weights
      const std::string rule = std::string("mmap:") + part + ":" + std::to_string(nth) + ":cut";
      const Outcome outcome = generate(rule, "a.mp4", path("model"));
      if (outcome.code == 0) break;  // not mapped that often
      expect(outcome, 3, part);
      EXPECT_FALSE(fs::exists(path("a.mp4")));
      cut_in_use += outcome.err.find("became shorter while it was in use") != std::string::npos;
      fs::copy(kModel, path("model"),
               fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    }
    fs::remove(path("a.mp4"));
    fs::remove(path("a.mp4.json"));
  }
  EXPECT_GE(cut_in_use, 3);
}

}  // namespace
}  // namespace weft
