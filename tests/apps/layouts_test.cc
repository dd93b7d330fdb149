// The layout never changes the picture: golden cases under every legal layout of up to 8 ranks, at
// the cases' own bounds, in both precisions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "apps/verify_case.h"
#include "io/json.h"

namespace weft {
namespace {

Ranks threads(int count) { return {.count = count, .on_this_host = count}; }

struct Family {
  const char* name;
  std::vector<const char*> cases;
  int most_ranks;
};

// gtest prints it.
void PrintTo(const Family& family, std::ostream* out) { *out << family.name; }

class Layouts : public testing::TestWithParam<Family> {};

TEST_P(Layouts, EveryLegalOneGivesTheExpectedTensors) {
  int combinations = 0;
  double worst = 0;
  for (const char* name : GetParam().cases) {
    const std::string folder = std::string("tests/golden/") + name;
    const LayoutLimits limits = stage_limits(folder, read_json_file(folder + "/case.json"));
    for (int ranks = 2; ranks <= GetParam().most_ranks; ++ranks)
      for (const Layout& layout : legal_layouts(ranks, limits)) {
        if (layout[Axis::kData] > 2) continue;  // more of the same
        for (DType dtype : {DType::kF32, DType::kBF16}) {
          const VerifyOptions options{.dtype = dtype, .threads = 1};
          ++combinations;
          for (const VerifyRow& row :
               verify_case(folder, options, threads(ranks), to_string(layout))) {
            EXPECT_TRUE(row.pass) << name << " " << to_string(layout) << " " << to_string(dtype)
                                  << " " << row.tensor << ": rel_l2 " << row.rel_l2 << ", bound "
                                  << row.bound << " " << row.note;
            if (dtype == DType::kF32) worst = std::max(worst, row.rel_l2 / row.bound);
          }
        }
      }
  }
  std::printf("%d combinations, worst f32 error %.3g of its bound\n", combinations, worst);
  RecordProperty("combinations", combinations);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, Layouts,
    testing::Values(
        Family{"Transformer",
               {"dit_wan_tiny", "dit_wan_tiny_image", "dit_wan_tiny_sharded",
                "dit_wan_hd128_bf16_weights"},
               8},
        Family{"Vae", {"vae21_tiny_decode3", "vae21_tiny_encode3", "vae_patch2_decode3"}, 5},
        Family{"TextEncoder", {"umt5", "umt5_uneven"}, 4},
        Family{"Pipeline", {"pipeline_t2v", "pipeline_two_experts"}, 8}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(LayoutErrors, NameTheLegalOnes) {
  try {
    verify_case("tests/golden/dit_wan_tiny", {.dtype = DType::kF32, .threads = 1}, threads(2),
                "cfg=2");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find("ulysses=2"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace weft
