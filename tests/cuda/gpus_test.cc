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
  const std::string job = "generate --model " + kModel + kJob + "-p x --dry-run --layout cfg=2 " +
                          "--memory-limit 1G --host-memory-limit 1G ";
  const Outcome two = run(job + "--gpus 2");
  ASSERT_EQ(two.code, 0) << two.err;
  EXPECT_NE(two.out.find("device  cuda:0"), std::string::npos) << two.out;
  EXPECT_NE(two.out.find("(2 threads of one process)"), std::string::npos) << two.out;
  EXPECT_EQ(run(job + "--device cuda --ranks 2").out, two.out);
}

// --layout auto measures the device and the link between the ranks' devices, which are two or one.
TEST_F(Cli, TheLayoutIsChosenByTheRatesOfTheDevicesAtHand) {
  const std::string job =
      "generate --model models/pocket --num-frames 5 --steps 2 -p x --dry-run --json --gpus 2 ";
  for (const char* devices : {"1", "2"}) {
    const std::string program = "WEFT_EMULATED_DEVICES=" + std::string(devices) + " " + WEFT_BINARY;
    const Outcome outcome = run(job, program);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const auto plan = nlohmann::json::parse(outcome.out);
    EXPECT_EQ(plan.at("chosen_from").at(0).at("layout"), plan.at("layout"));
    const auto rates = plan.at("chosen_on").at("rates").get<std::string>();
    for (const char* part : {"emulated GPU, cuda:0, linear ", " GFLOP/s", " (measured here)"})
      EXPECT_NE(rates.find(part), std::string::npos) << rates;
    EXPECT_NE(plan.at("chosen_on").at("link").get<std::string>().find(" Gbit/s, "),
              std::string::npos);
    const auto given = nlohmann::json::parse(run(job + "--link-gbit 8 --link-ms 1", program).out);
    EXPECT_EQ(given.at("chosen_on").at("link"), "8 Gbit/s, 1 ms");
    // One layout leaves nothing to measure.
    const auto fixed = nlohmann::json::parse(run(job + "--layout cfg=2", program).out);
    EXPECT_FALSE(fixed.contains("chosen_on"));
  }
  const Outcome planned = run("plan --model models/pocket --num-frames 5 --steps 2 --gpus 2");
  EXPECT_NE(planned.out.find(" (measured here)"), std::string::npos) << planned.out;
  EXPECT_EQ(planned.out.find("link    unlimited"), std::string::npos) << planned.out;
  const Outcome named = run("plan --model models/pocket --gpus 2 --device-name 'RTX 4090'");
  EXPECT_NE(named.out.find(" (expected of its datasheet)"), std::string::npos) << named.out;
}

// Processes measure as threads do, and all of them take the layout that the first one chooses.
TEST_F(Cli, ProcessesWithGpusAgreeOnTheLayout) {
  if (std::system("command -v mpirun > /dev/null")) GTEST_SKIP() << "no mpirun";
  const std::string mpirun =
      "WEFT_EMULATED_DEVICES=2 mpirun --allow-run-as-root --oversubscribe -n 2 ";
  const Outcome outcome =
      run("generate --model models/pocket --num-frames 5 --steps 2 --seed 3 "
          "-p x --progress none --device cuda -o " +
              path("a.mp4"),
          mpirun + WEFT_BINARY);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("chosen by simulation"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("(measured here), link "), std::string::npos) << outcome.err;
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
