// Models by name, from any working folder.
#include "apps/model_search.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "kernels/check.h"
#include "tests/apps/cli_testing.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using test::Cli, test::lines, test::Outcome;

// WEFT_MODEL_DIRS for the life of a test.
class ModelSearch : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    for (const char* name : {"one/clay", "two/clay", "two/chalk/inner", "two/no_model"})
      fs::create_directories(path(name));
    for (const char* name : {"one/clay", "two/clay", "two/chalk"})
      std::ofstream(path(name) + "/model_index.json") << "{}";
    setenv("WEFT_MODEL_DIRS", (path("one") + ":" + path("two")).c_str(), 1);
  }
  void TearDown() override {
    unsetenv("WEFT_MODEL_DIRS");
    Cli::TearDown();
  }
  std::string refusal(const std::string& name) {
    try {
      return "found " + find_model(name);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kModel);
      return error.what();
    }
  }
  // The binary, in the test's own folder.
  Outcome run_elsewhere(const std::string& arguments) {
    const fs::path before = fs::current_path();
    fs::current_path(folder_);
    const Outcome outcome = test::run(arguments);
    fs::current_path(before);
    return outcome;
  }
};

TEST_F(ModelSearch, PathsThatExistOrAreNoNamesStay) {
  for (const std::string& same :
       {path("one"), path("nowhere"), std::string("./clay"), std::string("../clay"),
        std::string("tests/golden"), std::string()})
    EXPECT_EQ(find_model(same), same);
}

// The cache of Hugging Face: models--org--name/{blobs,refs,snapshots}.
TEST_F(ModelSearch, ACacheFolderIsItsSnapshot) {
  const std::string cache = path("models--org--name");
  for (const char* name : {"/blobs", "/refs", "/snapshots/0a1", "/snapshots/0b2"})
    fs::create_directories(cache + name);
  EXPECT_NE(refusal(cache).find("legal: one of its snapshots: " + cache + "/snapshots/0"),
            std::string::npos)
      << refusal(cache);
  for (const char* wrong : {"0c3", "../../one", "."}) {
    std::ofstream(cache + "/refs/main") << wrong;
    EXPECT_NE(refusal(cache).find("refs/main"), std::string::npos) << wrong;
  }
  std::ofstream(cache + "/refs/main") << "0b2\n";
  EXPECT_EQ(find_model(cache), cache + "/snapshots/0b2");
  EXPECT_EQ(find_model(cache + "/"), cache + "/snapshots/0b2");
  EXPECT_EQ(find_model(cache + "/snapshots/0a1"), cache + "/snapshots/0a1");
  fs::remove(cache + "/refs/main");
  fs::remove(cache + "/snapshots/0a1");
  EXPECT_EQ(find_model(cache), cache + "/snapshots/0b2");
}

TEST_F(ModelSearch, TheFirstRootThatHasTheNameWins) {
  EXPECT_EQ(find_model("clay"), path("one/clay"));
  EXPECT_EQ(find_model("chalk"), path("two/chalk"));
  EXPECT_EQ(find_model("chalk/inner"), path("two/chalk/inner"));
}

TEST_F(ModelSearch, ARefusalTellsWhereItLookedAndWhatIsThere) {
  const std::string words = refusal("cloy");
  for (const std::string& root : model_roots())
    EXPECT_NE(words.find(root), std::string::npos) << words;
  EXPECT_EQ(model_roots().size(), 4u);
  EXPECT_NE(words.find("models there: clay, chalk, clay"), std::string::npos) << words;
  setenv("WEFT_MODEL_DIRS", path("nowhere").c_str(), 1);
  EXPECT_NE(refusal("clay").find("models there: none"), std::string::npos) << refusal("clay");
}

TEST_F(ModelSearch, EveryCommandTakesTheNameOfAModel) {
  for (const std::string& arguments : std::vector<std::string>{
           "generate --model pocket --prompt x --dry-run",
           "generate --model pocket --prompt x --expand-prompt pocket/language --dry-run",
           "plan --model pocket --steps 1 --num-frames 1 --device-gflops 9 --device-gbs 9",
           "complete --model pocket/language --prompt ball --max-tokens 2", "inspect pocket",
           "inspect pocket/language", "inspect pocket/vae/config.json",
           "bench load --model pocket --repeat 1"}) {
    const Outcome outcome = run_elsewhere(arguments);
    EXPECT_EQ(outcome.code, 0) << arguments << "\n" << outcome.err;
    EXPECT_FALSE(outcome.out.empty()) << arguments;
    EXPECT_EQ(outcome.err.find("warning"), std::string::npos) << outcome.err;
  }
}

TEST_F(ModelSearch, ANameThatNoModelHasIsRefusedInOneLine) {
  for (const char* arguments : {"generate --model poket --prompt x", "plan --model poket",
                                "complete --model poket --prompt x", "inspect poket"}) {
    const Outcome outcome = run_elsewhere(arguments);
    EXPECT_EQ(outcome.code, static_cast<int>(ErrorKind::kModel)) << arguments;
    EXPECT_EQ(lines(outcome.err), 1u) << outcome.err;
    EXPECT_NE(outcome.err.find("share/weft"), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("pocket"), std::string::npos) << outcome.err;
  }
}

TEST_F(ModelSearch, AJobOfANamedModelIsReplayedAndResumedElsewhere) {
  const std::string job =
      "generate --model pocket --prompt x --num-frames 1 --steps 2 --seed 3 --keep-latents "
      "--progress none -o a.png";
  const Outcome whole = run_elsewhere(job);
  ASSERT_EQ(whole.code, 0) << whole.err;
  EXPECT_EQ(test::run("replay " + path("a.png") + " --progress none").code, 0);
  for (const char* name : {"a.png", "a.png.json"}) ASSERT_TRUE(fs::remove(path(name))) << name;
  const Outcome resumed =
      test::run("generate --resume " + path("a.png.latents.safetensors") + " --progress none");
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  const auto hash = [](const Outcome& outcome) {
    return outcome.out.substr(outcome.out.find(' ')).substr(0, 65);
  };
  EXPECT_EQ(hash(resumed), hash(whole));
}

}  // namespace
}  // namespace weft
