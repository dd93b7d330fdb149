// --layout auto: the fastest layout by simulation, recorded so that replay and resume use it again.
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/calibrate.h"
#include "engine/planning/forecast.h"
#include "models/registry.h"
#include "tests/apps/cli_testing.h"

namespace weft {
namespace {

using namespace test;
using nlohmann::json;
using LayoutAuto = Cli;

const std::string kDevice = " --device-gflops 100 --device-gbs 10 ";
const std::string kFast = " --link-gbit 800 --link-ms 0.001 ",
                  kSlow = " --link-gbit 1 --link-ms 1 ";
const std::string kPlannedClip =
    " --model models/pocket --num-frames 9 --steps 2 --dtype f32 --threads 1 -p 'a big red ball' ";

std::vector<json> plans(const std::string& more) {
  const Outcome outcome = run("plan --json" + kPlannedClip + kDevice + more);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return test::json_lines(outcome.out);
}

// The pocket model's decoder has 64, 32 and 16 channels.
TEST(Calibration, MeasuresTheConvolutionsOfTheModelsDecoder) {
  using Shapes = std::vector<std::vector<int64_t>>;
  const auto pocket = open_vae("models/pocket/vae/config.json");
  EXPECT_EQ(decoder_kernels(*pocket),
            (Shapes{{16, 16, 3, 3, 3}, {32, 32, 3, 3, 3}, {64, 64, 3, 3, 3}}));
  // A decoder of single pictures has flat kernels.
  const auto pictures = open_vae("tests/golden/pipeline_zimage_cfg/model/vae/config.json");
  for (const std::vector<int64_t>& shape : decoder_kernels(*pictures)) EXPECT_EQ(shape.size(), 4u);
  EXPECT_FALSE(decoder_kernels(*pictures).empty());
  const auto transformer = open_transformer("models/pocket/transformer/config.json");
  const DeviceModel device =
      measure_device(2, 1, {DType::kF32, transformer->traits(), *pocket, DType::kF32});
  for (const OpFamily family : {OpFamily::kLinear, OpFamily::kAttention, OpFamily::kConv})
    EXPECT_GT(device.flop_per_s[static_cast<size_t>(family)], 1e7) << to_string(family);
}

TEST_F(LayoutAuto, PlansTheFastestOfAllAndNamesTheNextTwo) {
  std::vector<std::string> chosen;
  for (const std::string& link : {kFast, kSlow}) {
    const std::vector<json> all = plans("--ranks 4 --layout all" + link);
    const std::vector<json> one = plans("--ranks 4" + link);  // auto is the default
    ASSERT_EQ(one.size(), 1u);
    ASSERT_GT(all.size(), 3u);
    EXPECT_LT(one[0]["seconds"].get<double>() / all[0]["seconds"].get<double>(), kAlike + 0.02);
    EXPECT_EQ(one[0]["chosen_from"][0]["layout"], one[0]["layout"]);
    std::vector<json> others;
    for (const json& each : all)
      if (each["layout"] != one[0]["layout"]) others.push_back(each["layout"]);
    for (int place : {1, 2}) EXPECT_EQ(one[0]["chosen_from"][place]["layout"], others[place - 1]);
    chosen.push_back(one[0]["layout"]);
  }
  EXPECT_NE(chosen[0], chosen[1]);
  const Outcome text = run("plan --ranks 4 --layout auto" + kPlannedClip + kDevice + kFast);
  EXPECT_NE(text.out.find("chosen  " + chosen[0] + ": "), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("; next: "), std::string::npos) << text.out;
}

TEST_F(LayoutAuto, IsRecordedAndReplayed) {
  const std::string job = kPlannedClip + "--seed 3 --progress none --ranks 4 --layout auto" + kSlow;
  const Outcome made = run("generate --json -o " + path("a.mp4") + job);
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_NE(made.err.find("chosen by simulation: "), std::string::npos) << made.err;
  std::ifstream file(path("a.mp4.json"));
  const json sidecar = json::parse(file);
  const json layout = sidecar["given"]["layout"];
  EXPECT_EQ(layout["origin"], "auto");
  EXPECT_EQ(layout["value"], sidecar["engine"]["layout"]);
  const Outcome again = run("replay --json -q " + path("a.mp4"));
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(json::parse(again.out)["framehash"], json::parse(made.out)["framehash"]);
  EXPECT_TRUE(json::parse(again.out)["differences"].empty()) << again.out;
}

// The latents that an earlier run left say its layout, which no simulation would choose.
TEST_F(LayoutAuto, ResumesWithTheLayoutOfTheInterruptedRun) {
  const std::string job = "generate --overwrite --keep-latents -o " + path("a.mp4") + kPlannedClip +
                          "--seed 3 --progress none --ranks 2" + kFast;
  ASSERT_EQ(run(job + "--layout tensor=2").code, 0);
  const auto layout = [&] {
    std::ifstream file(path("a.mp4.json"));
    return json::parse(file)["given"]["layout"]["value"].get<std::string>();
  };
  ASSERT_EQ(run(job + "--layout auto").code, 0);
  EXPECT_EQ(layout(), "tensor=2");
  ASSERT_EQ(run(job + "--layout auto --resume never").code, 0);
  EXPECT_NE(layout(), "tensor=2");
}

TEST_F(LayoutAuto, RefusesWhatNoLayoutCanDo) {
  const Outcome outcome =
      run("plan --model " + kModel + " --size 32x16 --num-frames 5 --guidance-scale 1 --ranks 7" +
          kDevice);
  EXPECT_EQ(outcome.code, 2) << outcome.out;
  EXPECT_NE(outcome.err.find("--layout is 'auto': "), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("legal numbers of ranks near it: 6 and 8"), std::string::npos)
      << outcome.err;
}

TEST_F(LayoutAuto, OffersLayoutsUnderWhichAJobFits) {
  // A picture: the memory of a clip is that of its decoder, whatever the layout.
  const std::string clip =
      " --model models/pocket --num-frames 1 --steps 2 --dtype f32 --resident-layers 8 -p ball" +
      kDevice + kFast;
  const std::string job = "plan --json --ranks 4 --layout all" + clip;
  uint64_t least = UINT64_MAX, most = 0;
  std::string widest;
  std::istringstream lines(run(job + " --memory-limit 1M").out);  // one part at a time
  for (std::string line; std::getline(lines, line);) {
    const json one = json::parse(line);
    const uint64_t bytes = one["high_water_bytes"];
    least = std::min(least, bytes);
    if (bytes > most) widest = one["layout"];
    most = std::max(most, bytes);
  }
  ASSERT_LT(least, most);
  const std::string limit = " --memory-limit " + std::to_string(4 * least);
  const Outcome outcome = run("plan --ranks 4 --layout " + widest + clip + limit);
  EXPECT_EQ(outcome.code, 4) << outcome.out;
  EXPECT_NE(outcome.err.find("Try --layout "), std::string::npos) << outcome.err;
  const json chosen = json::parse(run("plan --json --ranks 4" + clip + limit).out);
  EXPECT_EQ(chosen["fits"], true);
  EXPECT_EQ(chosen["high_water_bytes"], least);
}

// Patches of one job need an axis that the other cannot use. On one rank both are drawn.
TEST_F(LayoutAuto, JobsWithAndWithoutDisplacedPatchesNeedOtherLayouts) {
  const std::string jobs = path("jobs.jsonl");
  std::ofstream(jobs) << R"({"prompt": "a", "method": "distrifusion:patches=2"})"
                      << "\n"
                      << R"({"prompt": "b", "method": "full"})"
                      << "\n";
  const std::string command =
      "generate --model tests/golden/pipeline_t2v/model --size 32x32 --num-frames 9 --steps 9 "
      "--quiet --prompt-file " +
      jobs + " -o " + path("{idx}.mp4");
  const Outcome two = run(command + " --ranks 2 --layout patch=2");
  EXPECT_EQ(two.code, 2);
  EXPECT_NE(two.err.find("different methods"), std::string::npos) << two.err;
  const Outcome one = run(command);
  EXPECT_EQ(one.code, 0) << one.err;
}

}  // namespace
}  // namespace weft
