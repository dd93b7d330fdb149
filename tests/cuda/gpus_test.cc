// --gpus and --device auto where there is a GPU: the emulated one.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "apps/command_line/flags.h"
#include "tests/apps/cli_testing.h"

namespace weft {
namespace {

using test::Cli, test::kJob, test::kModel, test::Outcome, test::run;

TEST_F(Cli, GpusAreTheDevicesOfTheRanks) {
  // The limits replace the free memory of the machine, which changes between two runs.
  const std::string job = "generate --model " + kModel + kJob +
                          "-p x --dry-run --memory-limit 1G --host-memory-limit 1G ";
  const Outcome two = run(job + "--gpus 2");
  ASSERT_EQ(two.code, 0) << two.err;
  EXPECT_NE(two.out.find("device  cuda:0"), std::string::npos) << two.out;
  EXPECT_NE(two.out.find("(2 threads of one process)"), std::string::npos) << two.out;
  EXPECT_EQ(run(job + "--device cuda --ranks 2").out, two.out);
}

TEST_F(Cli, AutoTakesTheGpuAndTheSidecarSaysSo) {
  EXPECT_EQ(Flags::parse(kGenerate, {}).text("device"), "cuda");
  const Outcome outcome =
      run("generate --model " + kModel + " --size 32x16 --num-frames 1 --steps 1 " +
          "--seed 5 --progress none -p x -o " + path("a.png"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("(chosen by --device auto)"), std::string::npos) << outcome.err;
  const auto sidecar = nlohmann::json::parse(std::ifstream(path("a.png.json")));
  EXPECT_EQ(sidecar.at("engine").at("device"), "cuda");
  EXPECT_EQ(sidecar.at("given").at("device").at("value"), "cuda");
  EXPECT_EQ(sidecar.at("given").at("device").at("origin"), "auto");
}

}  // namespace
}  // namespace weft
