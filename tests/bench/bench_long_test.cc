// weft_measure long: its table, its JSON lines and its plot; and the same frames on 1 to 4 ranks.
#include "tests/bench/measure_testing.h"

namespace weft {
namespace {

using test::Cli, test::Outcome, test::run, test::measured, test::measured_lines, test::plotted;
using BenchLong = Cli;

const char* const kSmallLong =
    "long --model tests/golden/pipeline_t2v/model --size 32x16 --num-frames 41 --steps 9 "
    "--dtype f32 ";

TEST_F(BenchLong, AllMethodsOnOneAndTwoRanks) {
  const auto lines = measured_lines(
      std::string(kSmallLong) +
      "--json "
      " queue:block=2,context=1 full clips:window=3,global=2 queue:block=4,context=1");
  ASSERT_EQ(lines.size(), 8u);
  EXPECT_EQ(lines[0].at("method"), "full");  // the reference comes first
  EXPECT_TRUE(lines[0].at("psnr").is_null());
  EXPECT_EQ(lines[0].at("ssim"), 1);
  for (size_t i = 0; i < lines.size(); ++i) {
    const nlohmann::json& line = lines[i];
    const size_t ranks = 1 + i % 2;
    EXPECT_EQ(line.at("ranks"), ranks);
    EXPECT_EQ(line.at("frames"), 41);
    EXPECT_EQ(line.at("steps"), 9);
    EXPECT_GT(line.at("frames_per_second"), 0);
    EXPECT_GT(line.at("first_frame_seconds"), 0);
    EXPECT_GT(line.at("peak_bytes"), 100'000);
    EXPECT_EQ(line.at("peak_from"), ranks == 1 ? "counters" : "plan");
    EXPECT_EQ(line.at("bytes_per_frame") > 0, ranks == 2);
    EXPECT_EQ(line.at("read").at("stretches"), 1);
    EXPECT_EQ(line.at("drift").at("mean").size(), 3u);
    EXPECT_GT(line.at("change").at("inside"), 0);
    if (i >= 2) {
      EXPECT_LT(line.at("ssim"), 1);
      EXPECT_LT(line.at("psnr"), 100);
    }
    const bool same = line.at("framehash") == lines[i - i % 2].at("framehash");
    EXPECT_EQ(line.at("same_frames_as_one_rank"), same);
    EXPECT_TRUE(same || !line.at("method").get<std::string>().starts_with("queue")) << line;
  }
  EXPECT_EQ(lines[2].at("method"), "queue:block=2,context=1");
  const std::string drawn = plotted(lines, folder_);
  for (const char* text :
       {"queue:block=2,context=1", "clips", "dots are where blocks meet", "</svg>"})
    EXPECT_NE(drawn.find(text), std::string::npos) << text;
}

// Several cases of a method have one row of one rank, whose time and frames they are compared with.
TEST_F(BenchLong, CasesNameTheAxisThatRanksShare) {
  const auto lines = measured_lines(std::string(kSmallLong) +
                                    "--json full@ring=2 queue:block=2,context=1 full full@ulysses "
                                    "queue:block=2,context=1@layers");
  const char* const layouts[] = {"one rank",
                                 "ring=2,text_ranks=1,decode_rank=0",
                                 "cfg=2",
                                 "ulysses=2,text_ranks=1,decode_rank=0",
                                 "one rank",
                                 "layers=2,text_ranks=1,decode_rank=0",
                                 "layers=2,text_ranks=1,decode_rank=0"};
  ASSERT_EQ(lines.size(), std::size(layouts));
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i].at("layout"), layouts[i]);
    EXPECT_EQ(lines[i].at("method"), i < 4 ? "full" : "queue:block=2,context=1");
    EXPECT_EQ(lines[i].at("bytes_per_frame") > 0, lines[i].at("ranks") == 2) << lines[i];
    // Splits of full attention may round otherwise than one rank.
    if (i >= 4) {
      EXPECT_TRUE(lines[i].at("same_frames_as_one_rank")) << lines[i];
    } else if (!lines[i].at("psnr").is_null()) {
      EXPECT_GT(lines[i].at("psnr"), 70) << lines[i];
    }
  }
}

TEST_F(BenchLong, TheTableHasALinePerRow) {
  const Outcome outcome =
      measured(std::string(kSmallLong) + "--ranks 1 full queue:block=2,context=1");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("frames/s"), std::string::npos);
  EXPECT_NE(outcome.out.find("\nqueue:block=2,context=1"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("\nfull"), std::string::npos);
}

// The pocket model has eight blocks, so that one to four stages are legal.
TEST_F(BenchLong, FourStagesGiveTheFramesOfOne) {
  const auto lines = measured_lines(
      "long --model models/pocket --size 32x32 --num-frames 41 --steps 9 --dtype f32 "
      "--ranks 4 --json queue:block=2,context=1");
  ASSERT_EQ(lines.size(), 4u);
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i].at("framehash"), lines[0].at("framehash")) << i + 1 << " ranks";
    const std::string stages = i > 0 ? "layers=" + std::to_string(i + 1) : "one rank";
    EXPECT_TRUE(lines[i].at("layout").get<std::string>().starts_with(stages)) << lines[i];
  }
}

// The only block takes nine steps, and each sends hidden rows to the second stage and the latent
// back.
TEST_F(BenchLong, MessagesTakeTheTimeOfTheLink) {
  const auto lines = measured_lines(
      "long --model tests/golden/pipeline_t2v/model --size 32x16 --num-frames 9 --steps 9 "
      "--dtype f32 --link-ms 50 --json queue:block=2,context=1");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_TRUE(lines[1].at("layout").get<std::string>().starts_with("layers=2")) << lines[1];
  EXPECT_EQ(lines[1].at("link_ms"), 50);
  EXPECT_EQ(lines[1].at("link_gbit"), 0);
  EXPECT_LT(lines[1].at("frames_per_second"), 9 / (9 * 2 * 0.05));
  EXPECT_EQ(lines[1].at("framehash"), lines[0].at("framehash"));
}

TEST_F(BenchLong, WhatCannotBeMeasuredIsNamed) {
  for (const auto& [operands, text] : {std::pair{"--steps 3 queue:block=2,context=1", "steps"},
                                       {"--size 32", "WxH"},
                                       {"half", "full, clips, queue"},
                                       {"half@ring", "full, clips, queue"},
                                       {"full@", "full@ring"},
                                       {"full@side", "side"},
                                       {"full@ring=3", "the product of its axes is 3"},
                                       {"queue:block=1,context=2", "context"}}) {
    const Outcome outcome =
        measured(std::string("long --model tests/golden/pipeline_t2v/model ") + operands);
    EXPECT_EQ(outcome.code, 2) << operands << outcome.err;
    EXPECT_EQ(test::lines(outcome.err), 1u) << outcome.err;
    EXPECT_NE(outcome.err.find(text), std::string::npos) << outcome.err;
  }
  EXPECT_EQ(run("bench ops full").code, 2);  // only long and truth take methods
  EXPECT_EQ(measured("layouts full").code, 2);
}

}  // namespace
}  // namespace weft
