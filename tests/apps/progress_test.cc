#include "apps/progress.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(Progress, PercentIsMonotoneOverAJobAndBelow100) {
  double last = -1;
  for (const auto& [stage, total] : std::vector<std::pair<std::string, int>>{{"load", 1},
                                                                             {"encode_text", 2},
                                                                             {"denoise", 20},
                                                                             {"decode", 7},
                                                                             {"encode_video", 1},
                                                                             {"write", 1}})
    for (int step = 0; step <= total; ++step) {
      Progress progress;
      progress.stage = stage;
      progress.step = step;
      progress.total = total;
      const double percent = overall_percent(progress);
      EXPECT_GE(percent, last) << stage << step;
      EXPECT_LT(percent, 100);
      last = percent;
    }
  EXPECT_GT(last, 90);
}

}  // namespace
}  // namespace weft
