// --mode and --resident-layers, as a user meets them on a CPU.
#include <nlohmann/json.hpp>

#include "kernels/linear.h"
#include "models/wan/names.h"
#include "tests/apps/cli_testing.h"
#include "tests/support/gguf_copy.h"

namespace weft {
namespace {

using namespace test;

using MemoryModeFlag = Cli;

const std::string kSmallClip =
    " --model models/pocket --width 64 --height 64 --num-frames 5 --steps 2 --seed 5 --threads 1 "
    "--dtype f32 --progress none -p 'a big red ball' ";

TEST_F(MemoryModeFlag, ResidentLayersReadFromTheFileGiveTheSameClip) {
  const nlohmann::json all =
      json_lines_of("generate --json" + kSmallClip + "-o " + path("all.mp4")).front();
  EXPECT_FALSE(all.contains("streaming"));
  const Outcome outcome =
      run("generate --json" + kSmallClip + "--resident-layers 2 -o " + path("some.mp4"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const nlohmann::json some = json_lines(outcome.out).front();
  EXPECT_EQ(some["framehash"], all["framehash"]);
  EXPECT_LT(some["memory_high_water"], all["memory_high_water"]);
  const nlohmann::json& streaming = some["streaming"];
  EXPECT_EQ(streaming["source"], "file");
  EXPECT_EQ(streaming["forwards"], 4);
  EXPECT_GT(streaming["upload_gbs"], 0);
  EXPECT_GE(streaming["hidden_share"], 0);
  EXPECT_NE(outcome.err.find("2 of 8 layers in memory"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("a forward from the file"), std::string::npos) << outcome.err;
  const nlohmann::json sidecar = nlohmann::json::parse(std::ifstream(path("some.mp4.json")));
  EXPECT_EQ(sidecar["resident_layers"], 2);
  EXPECT_EQ(sidecar["streaming"]["forwards"], 4);
  // A replay with all layers in memory is the same clip.
  const Outcome again = run("replay " + path("some.mp4") + " --mode speed");
  EXPECT_EQ(again.code, 0) << again.err;
}

TEST_F(MemoryModeFlag, DecidesByTheLimit) {
  const auto plan = [&](const std::string& flags) {
    const Outcome outcome = run("generate --dry-run --json" + kSmallClip + flags);
    EXPECT_TRUE(outcome.code == 0 || outcome.code == 4) << outcome.err;
    return json_lines(outcome.out).front();
  };
  const nlohmann::json all = plan("");
  EXPECT_EQ(all["mode"], "auto");
  EXPECT_EQ(all["mode_reason"], "it fits: all resident");
  EXPECT_FALSE(all.contains("resident_layers"));
  const nlohmann::json least = plan("--mode memory --weights compute");
  EXPECT_EQ(least["mode"], "memory");
  EXPECT_EQ(least["weights"], "compute");
  EXPECT_LT(least["high_water_bytes"], all["high_water_bytes"]);
  // The limit of the smallest plan is enough for auto, too, and its clip is the same.
  const std::string limit =
      "--memory-limit " + std::to_string(least["high_water_bytes"].get<uint64_t>()) + "B ";
  const nlohmann::json tight = plan(limit);
  EXPECT_TRUE(tight["fits"]);
  EXPECT_EQ(tight["weights"], "compute");
  EXPECT_NE(tight["residency"], "all resident");
  const auto hash = [&](const std::string& flags) {
    return json_lines_of("generate --json" + kSmallClip + flags + " --overwrite -o " +
                         path("a.mp4"))
        .front()["framehash"];
  };
  EXPECT_EQ(hash(limit), hash(""));
  EXPECT_FALSE(plan(limit + "--mode speed")["fits"]);
  const Outcome refused = run("generate" + kSmallClip + limit + "--mode speed -o " + path("b.mp4"));
  EXPECT_EQ(refused.code, 4);
  EXPECT_NE(refused.err.find("Try --mode auto ("), std::string::npos) << refused.err;
  // The header says the same in a line.
  const Outcome told = run("generate --dry-run" + kSmallClip + limit);
  EXPECT_NE(told.out.find("\nmode    auto, all resident would take "), std::string::npos)
      << told.out;
}

// 8-bit weights are a fact of the job: its file says so, and a replay has them without the mode.
TEST_F(MemoryModeFlag, WeightsThatAModeChoseAreRecorded) {
  if (!cpu_has_int8()) GTEST_SKIP() << "no 8-bit weights here";
  const Outcome outcome =
      run("generate --json" + kSmallClip + "--mode memory -o " + path("small.mp4"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("int8 weights, which change the picture"), std::string::npos)
      << outcome.err;
  const nlohmann::json sidecar = nlohmann::json::parse(std::ifstream(path("small.mp4.json")));
  EXPECT_EQ(sidecar["engine"]["weights"], "int8");
  const Outcome again = run("replay " + path("small.mp4"));
  EXPECT_EQ(again.code, 0) << again.err;
  const nlohmann::json exact =
      json_lines_of("generate --json" + kSmallClip + "--mode memory --weights compute -o " +
                    path("exact.mp4"))
          .front();
  EXPECT_NE(exact["framehash"], sidecar["framehash"]);
}

// Weights as the file stores them can be read ahead, too, and the smallest mode keeps them.
TEST_F(MemoryModeFlag, WeightsOfAFileAreReadAhead) {
  const std::string file = path("transformer.gguf");
  write_gguf(file, TensorFile::open("models/pocket/transformer"), BlockType::kQ8_0,
             WanNames{.original = true});
  const std::string stored = kSmallClip + "--transformer " + file + " --weights file ";
  const auto drawn = [&](const std::string& flags) {
    return json_lines_of("generate --json --overwrite" + flags + " -o " + path("a.mp4")).front();
  };
  const nlohmann::json all = drawn(stored);
  for (const std::string flags : {"--resident-layers 2", "--mode memory"}) {
    const nlohmann::json some = drawn(stored + flags);
    EXPECT_EQ(some["framehash"], all["framehash"]) << flags;
    EXPECT_LT(some["memory_high_water"], all["memory_high_water"]) << flags;
    // The small model's decoding leaves room for all of its blocks in mode memory.
    EXPECT_EQ(some.contains("streaming"), flags != "--mode memory") << flags;
    const Outcome again = run("replay " + path("a.mp4"));
    EXPECT_EQ(again.code, 0) << again.err;
  }
  EXPECT_EQ(nlohmann::json::parse(std::ifstream(path("a.mp4.json")))["engine"]["weights"], "file");
}

TEST_F(MemoryModeFlag, ContradictionsAreRefused) {
  const Outcome outcome =
      run("generate" + kSmallClip + "--mode speed --resident-layers 4 -o " + path("a.mp4"));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.err.find("--mode is speed, which keeps all layers in memory, but "
                             "--resident-layers is 4; legal with it: auto, memory"),
            std::string::npos)
      << outcome.err;
  EXPECT_EQ(run("generate" + kSmallClip + "--mode fast -o " + path("a.mp4")).code, 2);
  EXPECT_EQ(run("generate" + kSmallClip + "--resident-layers 1 -o " + path("a.mp4")).code, 2);
}

}  // namespace
}  // namespace weft
