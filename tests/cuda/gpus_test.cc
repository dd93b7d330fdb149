// --gpus and --device auto where there is a GPU: the emulated one.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "apps/command_line/flags.h"
#include "tests/apps/cli_testing.h"

namespace weft {
namespace {

using test::Cli, test::kJob, test::kModel, test::Outcome, test::run;

// The last line of standard error, which is the only one that is no warning.
std::string error_line(const Outcome& outcome) {
  std::istringstream lines(outcome.err);
  std::string last;
  int errors = 0;
  for (std::string line; std::getline(lines, line); last = line)
    errors += line.starts_with("weft: ") && !line.starts_with("weft: warning: ");
  EXPECT_EQ(errors, 1) << outcome.err;
  return last;
}

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

struct Absence {
  const char *environment, *reason;
};

// Without a usable device, a command that needs one ends in one line that says why; --device auto
// takes the CPU and gives the reason, and the doctor fails only where --device asks for a GPU.
TEST_F(Cli, AnAbsentDeviceHasAReason) {
  const std::string job = "generate --model " + kModel + kJob + "-p x --dry-run ";
  for (const auto& [environment, reason] : {
           Absence{"WEFT_EMULATED_DRIVER=12040", "too old (driver 12.4, toolkit 13.0)"},
           Absence{"WEFT_EMULATED_DRIVER=11080", "too old (driver 11.8, toolkit 13.0)"},
           Absence{"WEFT_EMULATED_DRIVER=0", "no NVIDIA driver is installed"},
           Absence{"WEFT_EMULATED_DEVICES=0", "the NVIDIA driver finds no GPU"},
           Absence{"WEFT_EMULATED_DEVICES=0 CUDA_VISIBLE_DEVICES=", "CUDA_VISIBLE_DEVICES is ''"},
           Absence{"WEFT_EMULATED_DEVICES=0 CUDA_VISIBLE_DEVICES=7", "CUDA_VISIBLE_DEVICES is '7'"},
       }) {
    const std::string program = std::string(environment) + " " + WEFT_BINARY;
    for (const char* flags : {"--device cuda", "--device cuda:0", "--gpus 2"}) {
      const Outcome refused = run(job + flags, program);
      EXPECT_EQ(refused.code, 2) << environment;
      EXPECT_NE(error_line(refused).find(reason), std::string::npos) << refused.err;
    }
    const Outcome falls_back = run(job, program);
    EXPECT_EQ(falls_back.code, 0) << environment;
    EXPECT_NE(falls_back.out.find("(chosen by --device auto: "), std::string::npos)
        << falls_back.out;
    EXPECT_NE(falls_back.out.find(reason), std::string::npos) << falls_back.out;
    EXPECT_EQ(run("doctor", program).code, 0) << environment;
    const Outcome doctor = run("doctor --device cuda", program);
    EXPECT_EQ(doctor.code, 1) << doctor.err;
    EXPECT_NE(doctor.out.find(reason), std::string::npos) << doctor.out;
  }
}

// A binary that was built for other cards says so before it loads anything.
TEST_F(Cli, ADeviceThatTheBinaryHasNoCodeForIsRefused) {
  const Outcome refused =
      run("generate --model " + kModel + kJob + "-p x --device cuda -o " + path("a.mp4"),
          std::string("WEFT_EMULATED_NO_CODE=1 ") + WEFT_BINARY);
  EXPECT_EQ(refused.code, 2) << refused.err;
  const std::string line = error_line(refused);
  for (const char* part :
       {"--device cuda:0: ", " has compute capability 9.0, for which this binary",
        "compiled for the emulated device", "WEFT_CUDA_ARCHITECTURES=native"})
    EXPECT_NE(line.find(part), std::string::npos) << line;
}

// Another process takes the device's memory after this one has planned: the job ends in one line
// with what was asked, what is free, and what needs less, whether it was loading or computing.
TEST_F(Cli, AFullDeviceSaysWhatHelps) {
  for (const char* left : {"1000000", "45000000", "120000000"}) {
    const uint64_t held = (uint64_t{8} << 30) - std::stoull(left);
    const Outcome full =
        run("generate --model " + kModel + kJob + "-p x --device cuda -o " + path("a.mp4"),
            "WEFT_EMULATED_HELD=" + std::to_string(held) + " " + WEFT_BINARY);
    EXPECT_EQ(full.code, 4) << left << full.err;
    const std::string line = error_line(full);
    for (const char* part : {"out of memory on cuda:0: ", " requested, ", " of 8.00 GiB free",
                             "--resident-layers", "--weights fp8", "--memory-limit", "--size"})
      EXPECT_NE(line.find(part), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace weft
