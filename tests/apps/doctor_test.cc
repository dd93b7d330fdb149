// weft doctor, and the self-test of the ops behind it.
#include "apps/doctor/doctor.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/doctor/device_checks.h"
#include "apps/doctor/self_test.h"
#include "parallel/transport/processes/mpi.h"
#include "parallel/transport/processes/ucx.h"
#include "tests/apps/cli_testing.h"
#include "tests/support/error_of.h"

namespace weft {
namespace {

using nlohmann::json;
using test::Cli, test::kModel, test::Outcome, test::run;

TEST(SelfTest, EveryTableAgreesWithTheReference) {
  for (const Ops* ops : all_ops())
    for (const OpCheck& check : self_test(*ops, reference_ops()))
      EXPECT_TRUE(check.pass()) << ops->name << " " << check.op << " " << check.error;
}

// The self-test finds an op that computes something else, in both precisions, and no other op.
TEST(SelfTest, AWrongOpFails) {
  Ops wrong = cpu_ops();
  wrong.pointwise.gelu_tanh = wrong.pointwise.silu;
  int failed = 0;
  for (const OpCheck& check : self_test(wrong, reference_ops())) {
    EXPECT_EQ(check.pass(), check.op != "gelu_tanh") << check.op;
    failed += !check.pass();
  }
  EXPECT_EQ(failed, 2);
}

class Doctor : public Cli {
 protected:
  // The last line of each check by its name.
  std::map<std::string, json> checks(const Outcome& outcome) {
    std::map<std::string, json> out;
    std::istringstream lines(outcome.out);
    for (std::string line; std::getline(lines, line);) {
      const json object = json::parse(line);
      out[object.at("check")] = object;
      EXPECT_EQ(object.at("status") == "PASS", object.at("remedy") == "") << line;
    }
    return out;
  }
};

TEST_F(Doctor, LooksAtEverythingAndLeavesNothing) {
  const Outcome outcome = run("doctor --json --model " + kModel + " --output " + path("new/"));
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  const auto found = checks(outcome);
  for (const char* name :
       {"build",    "cpu",           "ops norm",      "ops linear",   "ops attention",
        "ops rope", "ops pointwise", "ops conv",      "ops copy",     "cores",
        "memory",   "limits",        "/dev/shm",      "locale",       "environment",
        "output",   "encoder .mp4",  "encoder .webm", "encoder .gif", "encoder .png",
        "mpi",      "ucx",           "nccl",          "cuda",         "model",
        "weights"})
    EXPECT_TRUE(found.contains(name)) << name;
  for (const auto& [name, check] : found) EXPECT_NE(check.at("status"), "FAIL") << check.dump();
  if (mpi_built()) {
    EXPECT_TRUE(test::contains(found.at("mpi").at("detail").get<std::string>(), " memory"));
  }
  if (ucx_built()) {
    EXPECT_TRUE(test::contains(found.at("ucx").at("detail").get<std::string>(), "; takes "));
  }
  EXPECT_TRUE(files().empty());
  EXPECT_NE(run("doctor").out.find(" passed, "), std::string::npos);
}

TEST_F(Doctor, FaultsHaveARemedy) {
  std::ofstream(path("file")) << "x";
  const Outcome place = run("doctor --json --output " + path("file/"));
  EXPECT_EQ(place.code, 1);
  EXPECT_EQ(checks(place).at("output").at("status"), "FAIL");
  const Outcome model = run("doctor --json --model " + path("none"));
  EXPECT_EQ(model.code, 1);
  EXPECT_EQ(checks(model).at("model").at("status"), "FAIL");

  setenv("WEFT_CPUS", "2", 1);
  setenv("WEFT_CPU", "ref", 1);
  const Outcome environment = run("doctor --json");
  unsetenv("WEFT_CPUS");
  unsetenv("WEFT_CPU");
  EXPECT_EQ(environment.code, 0);  // warnings are no failure
  const auto found = checks(environment);
  EXPECT_EQ(found.at("environment").at("status"), "WARN");
  EXPECT_NE(found.at("environment").at("detail").get<std::string>().find("did you mean WEFT_CPU?"),
            std::string::npos);
  EXPECT_EQ(found.at("cpu").at("status"), "WARN");
  EXPECT_TRUE(environment.err.empty()) << environment.err;
}

// A card's line follows the kernels that its traits choose.
TEST(DoctorOfCards, SaysWhatRuns) {
  const auto line = [](const char* name, int major, int minor) {
    DeviceTraits card;
    card.name = name;
    card.major = major;
    card.minor = minor;
    const HealthCheck check = card_check(1, card);
    EXPECT_EQ(check.name, "cuda:1");
    EXPECT_EQ(check.health == Health::kPass, check.remedy.empty());
    EXPECT_EQ(check.health == Health::kPass, major >= 8);
    const bool fp8 = check.detail.find("fp8 weights") != std::string::npos &&
                     check.detail.find("multiplied in bf16") == std::string::npos;
    EXPECT_EQ(fp8, card.multiplies_e4m3()) << check.detail;
    EXPECT_EQ(check.detail.find("wgmma") != std::string::npos, card.has_warpgroups());
    return check.detail;
  };
  EXPECT_EQ(line("NVIDIA H200", 9, 0),
            "NVIDIA H200 (9.0): wgmma kernels and cuDNN attention, bf16, fp8 weights and "
            "attention");
  EXPECT_EQ(line("Tesla T4", 7, 5), "Tesla T4 (7.5): not supported: needs 8.0");
  const std::string ampere = line("NVIDIA GeForce RTX 3090", 8, 6), ada = line("NVIDIA L4", 8, 9);
  EXPECT_NE(ampere.find("(8.6): mma kernels and cuDNN attention, bf16, "), std::string::npos);
  EXPECT_NE(ada.find("fp8 weights; no fp8 attention"), std::string::npos) << ada;
  for (const auto& [major, minor] :
       {std::pair{7, 0}, {8, 0}, {8, 7}, {10, 0}, {10, 3}, {11, 0}, {12, 0}, {12, 1}, {13, 0}})
    line("another", major, minor);
}

}  // namespace
}  // namespace weft
