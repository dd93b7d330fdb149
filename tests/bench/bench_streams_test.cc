// weft_measure lips, face and streams: their lines and the picture of a face.
#include "tests/bench/measure_testing.h"

namespace weft {
namespace {

using test::Cli, test::measured_lines, test::plotted;
using BenchStreams = Cli;

TEST_F(BenchStreams, TheMouthOfTheAvatarFollowsTheVoice) {
  const auto lines = measured_lines("lips --seconds 8 --json");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_GT(lines[0].at("lip_correlation"), 0.7);
}

TEST_F(BenchStreams, AFaceIsDrawnInAllItsStates) {
  const auto lines = measured_lines("face");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].at("faces").size(), 18u);
  EXPECT_EQ(lines[0].at("states").size(), lines[0].at("opening").size());
  const std::string drawn = plotted(lines, folder_);
  for (const char* text : {">idle<", ">listening<", ">speaking<", "data:image/png;base64,iVBOR",
                           "opening of the mouth", "</svg>"})
    EXPECT_NE(drawn.find(text), std::string::npos) << text;
}

// Live Avatar's published pictures per second and first pictures (its tables 3 and 5), within 2 %.
TEST_F(BenchStreams, ForecastsRepeatPublishedFigures) {
  const auto lines = measured_lines("streams --json");
  ASSERT_EQ(lines.size(), 12u);
  int published = 0;
  for (const nlohmann::json& line : lines)
    if (line.contains("published_fps")) {
      ++published;
      const double first = line.at("published_first_frame_seconds");
      EXPECT_NEAR(line.at("first_frame_seconds"), first, 0.02 * first) << line;
    }
  EXPECT_EQ(published, 3);
}

}  // namespace
}  // namespace weft
