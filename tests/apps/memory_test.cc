// weft inspect --memory: its prediction agrees with the memory of the job within 2 %.
#include <nlohmann/json.hpp>

#include "engine/decoding/frame_writer.h"
#include "tests/apps/cli_testing.h"

namespace weft {
namespace {

using namespace test;

struct Clip {
  const char* model;
  const char* dtype;
  int frames, height, width;
};

using Memory = Cli;

TEST_F(Memory, PredictionAgreesWithTheMeasuredHighWater) {
  const std::string two = "tests/golden/pipeline_two_experts/model";
  for (const Clip& clip :
       {Clip{"models/pocket", "f32", 17, 128, 128}, Clip{"models/pocket", "bf16", 9, 192, 256},
        Clip{kModel.c_str(), "f32", 5, 128, 160}, Clip{two.c_str(), "bf16", 9, 96, 128}}) {
    const std::string size = std::to_string(clip.frames) + "x" + std::to_string(clip.height) + "x" +
                             std::to_string(clip.width);
    const Outcome told = run(std::string("inspect ") + clip.model + " --json --memory " + size +
                             " --dtype " + clip.dtype + " -p 'a big red ball'");
    ASSERT_EQ(told.code, 0) << told.err;
    const nlohmann::json plan = nlohmann::json::parse(told.out);
    const Outcome made =
        run(std::string("generate --json --threads 1 --steps 2 --progress none -p 'a big red ball' "
                        "--model ") +
            clip.model + " --dtype " + clip.dtype + " --num-frames " + std::to_string(clip.frames) +
            " --height " + std::to_string(clip.height) + " --width " + std::to_string(clip.width) +
            " --overwrite -o " + path("a.mp4"));
    ASSERT_EQ(made.code, 0) << made.err;
    // The meter does not see the pictures that wait for the writer; the plan counts all that may.
    const size_t waiting = std::min<size_t>(clip.frames, kFramesWaiting + 2);
    const double measured = nlohmann::json::parse(made.out)["memory_high_water"].get<double>() +
                            static_cast<double>(waiting * 3 * clip.height * clip.width);
    EXPECT_NEAR(plan["high_water_bytes"].get<double>() / measured, 1, 0.02)
        << clip.model << " " << size << " " << measured;
    uint64_t most = 0;
    for (const auto& [name, stage] : plan["stages"].items()) {
      EXPECT_EQ(stage["weights_bytes"].get<uint64_t>() + stage["activations_bytes"].get<uint64_t>(),
                stage["bytes"].get<uint64_t>());
      most = std::max(most, stage["bytes"].get<uint64_t>());
    }
    EXPECT_EQ(plan["high_water_bytes"], most);
  }
}

TEST_F(Memory, LongestPromptRanksAndWhatIsIllegal) {
  const auto high_water = [&](const std::string& more) {
    const Outcome outcome = run("inspect models/pocket --json --memory 9x128x128 " + more);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out)["stages"]["encode_text"]["activations_bytes"]
        .get<uint64_t>();
  };
  EXPECT_GT(high_water(""), high_water("-p ball"));
  EXPECT_LT(high_water("--ranks 2 --layout tensor=2"), high_water(""));
  EXPECT_NE(run("inspect models/pocket --memory 9x128x128").out.find("high-water"),
            std::string::npos);
  for (const std::string& illegal :
       {std::string("81x480"), std::string("81x480x832x3"), std::string("axbxc"),
        std::string("0x128x128"), std::string("10x128x128"), std::string("9x130x128")}) {
    const Outcome outcome = run("inspect models/pocket --memory " + illegal);
    EXPECT_EQ(outcome.code, 2) << illegal;
    EXPECT_EQ(lines(outcome.err), 1u) << outcome.err;
    EXPECT_TRUE(outcome.out.empty()) << outcome.out;
  }
  EXPECT_NE(run("inspect models/pocket --memory 10x128x128").err.find(" 9"), std::string::npos);
  EXPECT_EQ(run("inspect tests/golden/umt5/case.json --memory 9x128x128").code, 2);
}

}  // namespace
}  // namespace weft
