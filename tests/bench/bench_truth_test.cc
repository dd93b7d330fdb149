// weft_measure truth: its cases, its table, its JSON lines, its plot and its forecasts.
#include "tests/bench/measure_testing.h"

namespace weft {
namespace {

using test::Cli, test::Outcome, test::run, test::measured, test::measured_lines, test::plotted;
using BenchTruth = Cli;

const char* const kSmallTruth =
    "truth --model tests/golden/pipeline_t2v/model --size 32x16 --num-frames 17 --steps 9 "
    "--dtype f32 --repeat 2 --link-gbit 10 --link-ms 1 ";

TEST_F(BenchTruth, ComparesEveryCaseWithFullAttention) {
  const auto lines = measured_lines(std::string(kSmallTruth) +
                                    "--json "
                                    " full@ulysses full@ring clips:window=1,global=1@clip");
  ASSERT_EQ(lines.size(), 3u);
  for (size_t i = 0; i < lines.size(); ++i) {
    const nlohmann::json& line = lines[i];
    const bool exact = i < 2;
    EXPECT_EQ(line.at("psnr").is_null(), exact) << line;
    EXPECT_EQ(line.at("ssim") > 0.9999999, exact) << line;
    // The ring adds the parts of a sum in another order on two ranks.
    if (i != 1) {
      EXPECT_TRUE(line.at("same_frames_as_one_rank")) << line;
    }
    EXPECT_EQ(line.at("trained").at("clips"), 1);
    EXPECT_EQ(line.at("held_out").at("clips"), 1);
    EXPECT_GT(line.at("bytes_per_step"), 0);
    EXPECT_GT(line.at("one_rank_step_seconds"), 0);
    // Every step waits for the link's latency, and no message of the fast link has any.
    EXPECT_GT(line.at("slow_step_seconds"), 0.001);
  }
  const std::string drawn = plotted(lines, folder_);
  for (const char* text : {"full@ulysses", "clips:window=1,global=1@clip", "same", "</svg>"})
    EXPECT_NE(drawn.find(text), std::string::npos) << text;
}

TEST_F(BenchTruth, TheTableHasALinePerCase) {
  const Outcome outcome = measured(std::string(kSmallTruth) + "full@ulysses");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("kB/step"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("\nfull@ulysses"), std::string::npos) << outcome.out;
}

// A threshold of 0 skips nothing; one above all changes runs the first step and the last alone.
TEST_F(BenchTruth, ACacheIsACaseWithItsSkippedSteps) {
  const auto lines = measured_lines(
      "truth --model models/pocket --size 32x32 --num-frames 5 --steps 9 --dtype f32 "
      "--repeat 1 --json teacache:0@cfg teacache:1000@cfg full@cfg");
  ASSERT_EQ(lines.size(), 3u);
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i].at("skipped_steps"), i == 1 ? 7 : 0) << lines[i];
    EXPECT_EQ(lines[i].at("psnr").is_null(), i != 1) << lines[i];
    EXPECT_TRUE(lines[i].at("same_frames_as_one_rank")) << lines[i];
  }
}

// Pictures whose text is among the tokens: every patch has text rows of its own.
TEST_F(BenchTruth, DrawsPicturesUnderDisplacedPatches) {
  for (const char* model :
       {"pipeline_zimage_cfg", "pipeline_qwen_image", "pipeline_flux_schnell"}) {
    const auto lines = measured_lines(
        "truth --model tests/golden/" + std::string(model) +
        "/model --size 64x64 --num-frames 1 --steps 9 --dtype f32 --repeat 1 --link-gbit 10 "
        "--link-ms 1 --json full@ulysses distrifusion:patches=2,warmup=1@patch "
        "pipefusion:patches=2,warmup=1@layers");
    ASSERT_EQ(lines.size(), 3u) << model;
    for (size_t i = 0; i < lines.size(); ++i) {
      EXPECT_EQ(lines[i].at("psnr").is_null(), i == 0) << lines[i];
      EXPECT_GT(lines[i].at("ssim"), 0.99) << lines[i];
      EXPECT_TRUE(lines[i].at("same_frames_as_one_rank")) << lines[i];
      EXPECT_GT(lines[i].at("bytes_per_step"), 0) << lines[i];
    }
  }
}

// The plan of a picture counts the rows of text that each patch carries.
TEST_F(BenchTruth, PlansPicturesUnderDisplacedPatches) {
  for (const char* model : {"pipeline_qwen_image", "pipeline_flux_dev"})
    for (const char* way : {"--layout patch=2 --method distrifusion:patches=2",
                            "--layout patch=2 --method pcpp:patches=2",
                            "--layout layers=2 --method pipefusion:patches=2"}) {
      const Outcome outcome =
          run("plan --model tests/golden/" + std::string(model) +
              "/model --prompt \"a red ball\" --size 64x64 --steps 9 --ranks 2 " + way);
      EXPECT_EQ(outcome.code, 0) << model << way << outcome.err;
    }
  const Outcome ring =
      run("plan --model tests/golden/pipeline_flux_dev/model --prompt \"a red ball\" --size 64x64 "
          "--steps 9 --ranks 2 --layout ring=2 --method distrifusion:patches=2");
  EXPECT_EQ(ring.code, 2) << ring.err;
  EXPECT_EQ(test::lines(ring.err), 1u) << ring.err;
  const Outcome guided =
      run("plan --model tests/golden/pipeline_flux_schnell/model --prompt x --guidance-scale 3");
  EXPECT_EQ(guided.code, 2) << guided.err;
  EXPECT_NE(guided.err.find("guidance scale is 3, legal: 0 to 1"), std::string::npos) << guided.err;
}

TEST_F(BenchTruth, ForecastsEightRanksOverThreeLinks) {
  const auto lines = measured_lines(
      "truth --simulate --model models/pocket --json --device-gflops 100 --device-gbs 10 "
      "full@ring");
  ASSERT_EQ(lines.size(), 3u);
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_TRUE(lines[i].at("simulated"));
    EXPECT_GT(lines[i].at("high_water_bytes"), 0);
    if (i > 0) {
      EXPECT_GT(lines[i].at("step_seconds"), lines[i - 1].at("step_seconds"));
    }
  }
}

TEST_F(BenchTruth, WhatIsNoCaseIsNamed) {
  for (const auto& [operand, text] : {std::pair{"full", "METHOD@AXIS or CACHE@AXIS"},
                                      {"teacache@ring", "teacache:THRESHOLD"},
                                      {"half@ring", "full, clips, queue"},
                                      {"full@side", "side"}}) {
    const Outcome outcome = measured(std::string(kSmallTruth) + operand);
    EXPECT_EQ(outcome.code, 2) << operand << outcome.err;
    EXPECT_EQ(test::lines(outcome.err), 1u) << outcome.err;
    EXPECT_NE(outcome.err.find(text), std::string::npos) << outcome.err;
  }
}

}  // namespace
}  // namespace weft
