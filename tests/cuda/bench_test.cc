// Tests the program's benches and the doctor on the emulated device, over models of a few values:
// their counts and texts, not their times.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/cuda/device.h"
#include "tests/apps/cli_testing.h"
#include "tests/cuda/emulated_libraries.h"

namespace weft {
namespace {

using test::Outcome;
using test::run;

nlohmann::json result_of(const std::string& arguments) {
  const Outcome outcome = run("bench " + arguments + " --device cuda --dtype bf16 --json");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return outcome.code == 0 ? nlohmann::json::parse(outcome.out) : nlohmann::json{};
}

TEST(BenchOnADevice, LanguageModelByFolder) {
  const nlohmann::json result =
      result_of("llm --model tests/golden/llm_qwen3_tied/model --tokens 8 --repeat 1");
  EXPECT_EQ(result["device"], "cuda:0");
  EXPECT_EQ(result["read_by"], "copy");
  EXPECT_EQ(result["gemm"], "cublasLt");
  // There are seven GEMMs in each of two layers, and the output's: once for one pass, once for
  // eight.
  EXPECT_EQ(result["prefill_families"]["linear"]["calls"], 15);
  EXPECT_EQ(result["decode_families"]["linear"]["calls"], 120);
  EXPECT_EQ(result["decode"].size(), 3u);
  EXPECT_GT(result["share"], 0);
}

TEST(BenchOnADevice, LoadingHoldsTheWeightsOnceOnTheDevice) {
  const nlohmann::json result = result_of("load --model models/pocket --repeat 1");
  EXPECT_EQ(result["device"], "cuda:0");
  const double weights = result["weights_bytes"], held = result["device_tensor_bytes"];
  EXPECT_GE(held, weights);
  EXPECT_LT(held, 1.1 * weights);
  EXPECT_GT(result["of_upload"], 0);
}

// A guided model has two forwards a step, a short prompt and the search for NaN; FLUX's encoder
// fills all rows of a prompt.
TEST(BenchOnADevice, ForwardsAsGenerated) {
  for (const auto& [model, rows, forwards] : {std::tuple{"tests/golden/pipeline_t2v/model", 120, 2},
                                              {"tests/golden/pipeline_flux_dev/model", 512, 1},
                                              {"tests/golden/pipeline_qwen_image/model", 120, 2}}) {
    const std::string arguments = "dit --tokens 16 --repeat 1 --model " + std::string(model);
    const nlohmann::json plain = result_of(arguments),
                         generated = result_of(arguments + " --as-generated");
    EXPECT_EQ(plain["as_generated"], false);
    EXPECT_EQ(plain["text_rows"], 512);
    EXPECT_EQ(generated["as_generated"], true) << model;
    EXPECT_EQ(generated["text_rows"], rows) << model;
    EXPECT_EQ(generated["forwards"], forwards) << model;
    EXPECT_TRUE(generated.contains("graph_seconds")) << model;
    const auto calls = [](const nlohmann::json& of) {
      return of["families"]["pointwise"]["calls"].get<int>();
    };
    EXPECT_GT(calls(generated), forwards * calls(plain)) << model << ": the search for NaN";
    EXPECT_NEAR(generated["planned_over_taken"], 1, 0.05) << model;
  }
}

TEST(BenchOnADevice, LayoutsOfRanksOnOneDeviceAndOnTwo) {
  for (const auto& [devices, ranks] :
       {std::pair{"1", "2 threads on cuda:0"}, {"2", "2 threads on cuda:0 and cuda:1"}}) {
    setenv("WEFT_EMULATED_DEVICES", devices, 1);
    const Outcome outcome =
        run("layouts --model tests/golden/pipeline_t2v/model --tokens 8 --repeat 1 --device cuda "
            "--dtype bf16 --json",
            WEFT_MEASURE);
    unsetenv("WEFT_EMULATED_DEVICES");
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    std::map<std::string, int> methods;
    std::istringstream lines(outcome.out);
    for (std::string line; std::getline(lines, line);) {
      const auto object = nlohmann::json::parse(line);
      EXPECT_EQ(object["ranks"], ranks);
      EXPECT_FALSE(object.contains("simulated"));  // the meter would have to wait after every op
      ++methods[object["method"]];
    }
    for (const char* method : {"one rank", "cfg=2", "layers=2", "ring=2", "ulysses=2", "tensor=2"})
      EXPECT_EQ(methods[method], 1) << method;
  }
}

TEST(DoctorOnADevice, SaysWhatTheLibrariesTake) {
  const Outcome outcome = run("doctor --device cuda --json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::map<std::string, nlohmann::json> checks;
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) {
    const auto object = nlohmann::json::parse(line);
    checks[object["check"]] = object;
  }
  for (const char* name : {"cuda", "cuda:0", "library linear", "library attention", "library conv"})
    EXPECT_EQ(checks[name]["status"], "PASS") << checks[name].dump();
}

// Only refused problems are reported as refused, with the reason.
TEST(DoctorOnADevice, NamesARefusal) {
  test::EmulatedLibraries& libraries = test::emulated_libraries() = {};
  Stream stream = cuda_stream(0);
  for (bool* refuse : {&libraries.refuse_sdpa, &libraries.refuse_conv, &libraries.refuse_fp8}) {
    libraries = {};
    *refuse = true;
    for (const LibraryAnswer& answer : ask_cuda_libraries(stream)) {
      const bool refused = refuse == &libraries.refuse_sdpa   ? answer.family == "attention"
                           : refuse == &libraries.refuse_conv ? answer.family == "conv"
                                                              : answer.what.starts_with("f8");
      EXPECT_EQ(!answer.refusal.empty(), refused) << answer.family << " " << answer.what;
      if (refused) {
        EXPECT_NE(answer.refusal.find("says the test"), std::string::npos);
      }
    }
  }
  libraries = {};
}

}  // namespace
}  // namespace weft
