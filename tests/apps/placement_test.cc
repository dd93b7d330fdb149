// --gpus, --device auto and the ranks of a layout.
#include "apps/command_line/placement.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "kernels/check.h"
#include "kernels/cuda/device.h"
#include "tests/apps/cli_testing.h"

namespace weft {
namespace {

using test::Cli, test::kJob, test::kModel, test::Outcome, test::run;

Flags parse_placement(std::vector<std::string> arguments, Command command = kGenerate) {
  return Flags::parse(command, arguments);
}

std::string placement_refusal(std::vector<std::string> arguments, Command command = kGenerate) {
  try {
    parse_placement(std::move(arguments), command);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "no error";
}

bool has_gpu() { return !cuda_versions().empty() && cuda_device_count() > 0; }

TEST(Placement, RanksOfStagesFollowTheLayout) {
  EXPECT_EQ(layout_text(parse_placement({"--decode-rank", "0"})), "auto,decode_rank=0");
  EXPECT_EQ(layout_text(
                parse_placement({"--layout", "cfg=2", "--text-ranks", "1", "--decode-rank", "1"})),
            "cfg=2,text_ranks=1,decode_rank=1");
  EXPECT_EQ(parse_placement({"--layout", "cfg=2,decode_rank=1"}).integer("ranks"), 2);
  EXPECT_EQ(placement_refusal({"--decode-rank", "-1"}),
            "--decode-rank is -1, legal: 0 ... 4095; nearest: 0");
}

// A plan runs nothing, so it needs no GPU.
TEST(Placement, GpusAreTheDeviceCudaAndAsManyRanks) {
  for (const char* flag : {"--gpus", "--num-gpus", "--num_gpus"}) {
    const Flags flags = parse_placement({flag, "4"}, kPlan);
    EXPECT_EQ(flags.text("device"), "cuda");
    EXPECT_EQ(flags.integer("ranks"), 4);
    EXPECT_TRUE(flags.given("device") && flags.given("ranks"));
  }
  EXPECT_EQ(parse_placement({"--gpus", "4", "--print-config"}).text("device"), "cuda");
  EXPECT_EQ(
      parse_placement({"--gpus", "4", "--device", "cuda", "--ranks", "4"}, kPlan).integer("ranks"),
      4);
  EXPECT_EQ(
      placement_refusal({"--gpus", "4", "--device", "cpu"}, kPlan),
      "--gpus 4 means --device cuda --ranks 4, but --device is 'cpu'; legal beside it: --device "
      "cuda");
  EXPECT_EQ(
      placement_refusal({"--num-gpus", "4", "--ranks", "2"}, kPlan),
      "--num-gpus 4 means --device cuda --ranks 4, but --ranks is 2; legal beside it: --ranks "
      "4");
}

TEST_F(Cli, GpusAreRefusedWhereThereIsNone) {
  if (has_gpu()) GTEST_SKIP() << "this machine has a GPU";
  for (const char* command : {"generate -p x -o a.mp4 --model", "verify", "complete x --model"}) {
    const Outcome outcome = run(std::string(command) + " /nowhere --num-gpus 4");
    EXPECT_EQ(outcome.code, 2);
    EXPECT_EQ(outcome.err.find("weft: --num-gpus 4 means --device cuda --ranks 4, but this "), 0u)
        << outcome.err;
    EXPECT_NE(outcome.err.find("; on CPUs: --ranks 4\n"), std::string::npos) << outcome.err;
  }
}

TEST(Placement, AutoIsCudaWhereThereIsAGpu) {
  const std::string expected = has_gpu() ? "cuda" : "cpu";
  EXPECT_EQ(parse_placement({}).text("device"), expected);
  EXPECT_EQ(parse_placement({"--device", "auto"}).text("device"), expected);
  EXPECT_FALSE(parse_placement({"--device", "auto"}).given("device"));
  EXPECT_TRUE(parse_placement({"--device", "cpu"}).given("device"));
  // A build without CUDA has chosen nothing.
  EXPECT_EQ(parse_placement({}).origin("device"), cuda_versions().empty() ? "default" : "auto");
  EXPECT_EQ(parse_placement({"--device", "auto"}).origin("device"), "auto");
}

TEST_F(Cli, TheHeaderTellsWhatAutoChose) {
  const std::string job = "generate --model " + kModel + kJob + "-p x --dry-run ";
  const Outcome chosen = run(job + "--device auto");
  EXPECT_NE(chosen.out.find("(chosen by --device auto)\nlayout"), std::string::npos) << chosen.out;
  EXPECT_EQ(run(job + "--device cpu").out.find("chosen by"), std::string::npos);
}

TEST(Placement, LayoutsSayHowManyRanks) {
  const auto ranks = [](std::vector<std::string> arguments, Command command = kGenerate) {
    return parse_placement(std::move(arguments), command).integer("ranks").value_or(1);
  };
  EXPECT_EQ(ranks({"--ulysses", "2", "--cfg", "2"}), 4);
  EXPECT_EQ(ranks({"--layout", "layers=2,ring=3"}), 6);
  EXPECT_EQ(ranks({"--layout", "cfg=2,tensor=2"}, kReplay), 4);
  EXPECT_EQ(ranks({"--pp", "3"}, kComplete), 3);
  EXPECT_EQ(ranks({"--tp", "2"}, kVerify), 2);
  EXPECT_EQ(ranks({"--layout", "ring=2"}, kInspect), 2);
  EXPECT_EQ(ranks({"--ulysses", "1"}), 1);
  EXPECT_EQ(ranks({}), 1);
  EXPECT_EQ(ranks({"--layout", "auto"}), 1);
  EXPECT_EQ(ranks({"--layout", "all"}, kPlan), 1);
  // An explicit number of ranks counts; it is compared with the layout later.
  EXPECT_EQ(ranks({"--ulysses", "2", "--ranks", "3"}), 3);
  EXPECT_EQ(ranks({"--gpus", "4", "--ulysses", "2"}, kPlan), 4);
  setenv("OMPI_COMM_WORLD_RANK", "0", 1);
  setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
  EXPECT_EQ(ranks({"--ulysses", "2", "--cfg", "2"}), 1);  // the processes of mpirun are the ranks
  unsetenv("OMPI_COMM_WORLD_RANK");
  unsetenv("OMPI_COMM_WORLD_SIZE");
}

TEST(Placement, EveryAxisHasAFlag) {
  for (int axis = 0; axis < kAxes; ++axis) {
    const std::string flag = flag_of_axis(static_cast<Axis>(axis));
    // The steps of a stream are split by weft verify alone.
    const Command command = static_cast<Axis>(axis) == Axis::kStep ? kVerify : kGenerate;
    ASSERT_NE(find_flag(command, flag), nullptr) << flag;
    EXPECT_EQ(layout_text(parse_placement({"--" + flag, "2"}, command)),
              to_string(static_cast<Axis>(axis)) + std::string("=2"));
  }
}

}  // namespace
}  // namespace weft
