// Conformance cases that ask for what a reference pipeline ignores or refuses.
#include "apps/verify/verify_case.h"

#include "io/json.h"
#include "tests/apps/cli_testing.h"

namespace weft::test {
namespace {

class VerifyCases : public Cli {
 protected:
  // A copy of klein's pipeline, with other values in its case.json.
  std::string klein(const nlohmann::json& changes) const {
    fs::copy("tests/golden/pipeline_flux2_klein", path("case"),
             fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    nlohmann::json spec = read_json_file(path("case/case.json"));
    spec.update(changes);
    std::ofstream(path("case/case.json")) << spec.dump();
    return path("case");
  }
};

// The reference computes the same whatever the scale is. `generate` refuses it.
TEST_F(VerifyCases, GuidanceOfADistilledModelIsIgnored) {
  for (const double scale : {0.0, 1.0, 4.0})
    for (const VerifyRow& row : verify_case(klein({{"guidance_scale", scale}}), {.threads = 1}))
      EXPECT_TRUE(row.pass) << scale << " " << row.tensor << ": " << row.rel_l2 << " " << row.note;
}

// The cases after it run.
TEST_F(VerifyCases, AnIllegalRequestIsAMalformedCase) {
  const Outcome outcome =
      run("verify " + klein({{"height", 70}}) + " tests/golden/noise_torch_cpu");
  EXPECT_EQ(outcome.code, 3);
  EXPECT_NE(outcome.err.find("case.json: height is 70, legal: multiples of 16"), std::string::npos)
      << outcome.err;
  EXPECT_NE(outcome.out.find("PASS  noise_torch_cpu"), std::string::npos) << outcome.out;
}

}  // namespace
}  // namespace weft::test
