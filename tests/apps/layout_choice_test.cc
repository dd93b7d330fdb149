// --layout auto: the fastest layout by simulation, recorded so that replay and resume use it again.
#include <array>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/device.h"
#include "engine/planning/calibrate.h"
#include "engine/planning/forecast.h"
#include "models/registry.h"
#include "parallel/transport/local.h"
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

DeviceModel device_at(double flop_per_s, double bytes_per_s) {
  DeviceModel device;
  device.flop_per_s.fill(flop_per_s);
  device.bytes_per_s.fill(bytes_per_s);
  device.message_s = 1 / flop_per_s;
  return device;
}

TEST(Calibration, RanksAreAsSlowAsTheSlowestOfThem) {
  DeviceModel free = device_at(300, 30);
  free.flop_per_s[0] = free.copy_bytes_per_s = 0;  // they take no time
  const DeviceModel devices[] = {device_at(200, 50), free, device_at(100, 90)};
  const DeviceModel slowest = slowest_of(devices);
  EXPECT_EQ(slowest.flop_per_s, device_at(100, 30).flop_per_s);
  EXPECT_EQ(slowest.bytes_per_s, device_at(100, 30).bytes_per_s);
  EXPECT_EQ(slowest.copy_bytes_per_s, 0);
  EXPECT_EQ(slowest.message_s, 1 / 100.0);
  const DeviceModel half = share_of(device_at(200, 50), 2);
  EXPECT_EQ(half.flop_per_s, device_at(100, 25).flop_per_s);
  EXPECT_EQ(half.bytes_per_s, device_at(100, 25).bytes_per_s);
  EXPECT_EQ(half.message_s, 1 / 200.0);  // of the host's processor
}

// A link is measured between pairs, and its figures, like every device's, are those of all ranks.
TEST(Calibration, RanksAgreeOnWhatTheyMeasured) {
  constexpr int kRanks = 3;
  std::array<Link, kRanks> links;
  std::array<std::vector<DeviceModel>, kRanks> devices;
  run_ranks(kRanks, [&](Communicator& world) {
    Stream stream = Stream::cpu(1);
    links[world.rank()] = measure_link(world, stream);
    devices[world.rank()] = gathered(world, device_at(world.rank() + 1, 1));
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_GT(links[rank].latency_s, 0);
    EXPECT_GT(links[rank].bytes_per_s, 0);
    EXPECT_EQ(links[rank].latency_s, links[0].latency_s);
    EXPECT_EQ(links[rank].bytes_per_s, links[0].bytes_per_s);
    ASSERT_EQ(devices[rank].size(), size_t{kRanks});
    for (int of = 0; of < kRanks; ++of) EXPECT_EQ(devices[rank][of].flop_per_s[0], of + 1);
  }
}

// The emulated link's latency and bandwidth are found again.
TEST(Calibration, MeasuresTheLinkThatThereIs) {
  const Link is{.latency_s = 5e-3, .bytes_per_s = 50e6};
  Link measured;
  on_ranks(
      {.count = 2, .on_this_host = 2},
      [&](Communicator& world) {
        Stream stream = Stream::cpu(1);
        const Link link = measure_link(world, stream);
        if (world.rank() == 0) measured = link;
      },
      &is);
  EXPECT_GE(measured.latency_s, is.latency_s);
  EXPECT_LT(measured.latency_s, 3 * is.latency_s);
  EXPECT_GT(measured.bytes_per_s, is.bytes_per_s / 3);
  EXPECT_LE(measured.bytes_per_s, 1.2 * is.bytes_per_s);
}

TEST_F(LayoutAuto, PlansTheFastestOfAllAndNamesTheNextTwo) {
  std::vector<std::string> chosen;
  for (const std::string& link : {kFast, kSlow}) {
    // The ranks of stages that are no axes are given, because all leaves them as they are.
    const std::string stages = " --text-ranks 4 --vae-ranks 4 ";
    const std::vector<json> all = plans("--ranks 4 --layout all" + stages + link);
    const std::vector<json> one = plans("--ranks 4" + stages + link);  // auto is the default
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
  const Outcome text = run("plan --ranks 4 --layout auto --text-ranks 4 --vae-ranks 4" +
                           kPlannedClip + kDevice + kFast);
  EXPECT_NE(text.out.find("chosen  " + chosen[0] + ": "), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("; next: "), std::string::npos) << text.out;
}

// On slow links one rank encodes the text and decodes, unless flags say otherwise.
TEST_F(LayoutAuto, ChoosesTheRanksOfTheTextEncoderAndTheVae) {
  const json free = plans("--ranks 4" + kSlow).front(),
             given = plans("--ranks 4 --text-ranks 4 --vae-ranks 2" + kSlow).front();
  const auto ends_with = [](const json& plan, const std::string& stages) {
    return plan["layout"].get<std::string>().ends_with(stages);
  };
  EXPECT_TRUE(ends_with(free, ",text_ranks=1,vae_ranks=1")) << free["layout"];
  EXPECT_TRUE(ends_with(given, ",text_ranks=4,vae_ranks=2")) << given["layout"];
  EXPECT_LT(free["seconds"], given["seconds"]);
  // These ranks are still open where one split of the tokens is legal.
  const std::string patches =
      "plan --json --model models/pocket --steps 9 --dtype f32 --ranks 11 --guidance-scale 1 -p x "
      "--method pcpp:patches=11,warmup=1";
  const json one = json::parse(run(patches + kDevice + kSlow).out);
  EXPECT_EQ(one["layout"], "patch=11,text_ranks=1,vae_ranks=1");
  EXPECT_EQ(one["chosen_from"].size(), 1u);
}

TEST_F(LayoutAuto, IsRecordedAndReplayed) {
  for (const char* given : {"", " --text-ranks 2"}) {
    SCOPED_TRACE(given);
    const std::string job = kPlannedClip + "--seed 3 --progress none --overwrite --ranks 4" +
                            " --layout auto" + given + kSlow;
    const Outcome made = run("generate --json -o " + path("a.mp4") + job);
    ASSERT_EQ(made.code, 0) << made.err;
    EXPECT_NE(made.err.find("chosen by simulation: "), std::string::npos) << made.err;
    std::ifstream file(path("a.mp4.json"));
    const json sidecar = json::parse(file);
    const json layout = sidecar["given"]["layout"];
    EXPECT_EQ(layout["origin"], "auto");
    const std::string used = sidecar["engine"]["layout"];
    EXPECT_NE(used.find(*given ? ",text_ranks=2" : ",text_ranks=1"), std::string::npos) << used;
    const std::string axes = used.substr(0, used.find(",text_ranks"));
    EXPECT_TRUE(layout["value"].get<std::string>().starts_with(axes)) << layout;
    EXPECT_EQ(layout["value"] == used, !*given) << "what has a flag is not in it";
    const Outcome again = run("replay --json -q " + path("a.mp4"));
    ASSERT_EQ(again.code, 0) << again.err;
    EXPECT_EQ(json::parse(again.out)["framehash"], json::parse(made.out)["framehash"]);
    EXPECT_TRUE(json::parse(again.out)["differences"].empty()) << again.out;
  }
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
