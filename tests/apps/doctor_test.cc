// weft doctor, and the self-test of the ops behind it.
#include "apps/doctor/doctor.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/doctor/self_test.h"
#include "tests/apps/cli_testing.h"

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
        "mpi",      "cuda",          "model",         "weights"})
    EXPECT_TRUE(found.contains(name)) << name;
  for (const auto& [name, check] : found) EXPECT_NE(check.at("status"), "FAIL") << check.dump();
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

}  // namespace
}  // namespace weft
