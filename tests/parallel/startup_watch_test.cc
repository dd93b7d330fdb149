// Tests that start-up has a limit and that the error names the missing ranks.
#include "parallel/bootstrap/startup_watch.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>

namespace weft {
namespace {

namespace fs = std::filesystem;

class StartupWatchTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "weft-startup-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  // The error line of rank 0 of `ranks`.
  std::string late(int ranks, int ranks_here, double limit_s = 0.3) {
    std::promise<std::string> line;
    const StartupWatch watch(folder_, 0, ranks, ranks_here, limit_s,
                             [&](const std::string& text) { line.set_value(text); });
    return line.get_future().get();
  }

  std::string folder_;
};

TEST_F(StartupWatchTest, NamesWhoHasNotBegun) {
  const StartupWatch other(folder_, 2, 4, 4, 60, {});
  EXPECT_EQ(late(4, 4),
            "start-up: not all of the 4 ranks came together within 0.3 s; not begun: rank 1, "
            "rank 3");
}

TEST_F(StartupWatchTest, NamesWhoHasStopped) {
  std::ofstream(folder_ + "/weft-rank-1") << "starting\n";
  fs::last_write_time(folder_ + "/weft-rank-1",
                      fs::file_time_type::clock::now() - std::chrono::seconds(20));
  EXPECT_EQ(late(2, 2),
            "start-up: not all of the 2 ranks came together within 0.3 s; begun, but no sign of "
            "life: rank 1");
}

TEST_F(StartupWatchTest, WhoHasStartedIsNotMissed) {
  { const StartupWatch done(folder_, 1, 2, 2, 60, {}); }
  std::ofstream(folder_ + "/weft-rank-1") << "starting\n";
  fs::last_write_time(folder_ + "/weft-rank-1",
                      fs::file_time_type::clock::now() - std::chrono::seconds(20));
  EXPECT_NE(late(2, 2).find("all ranks of this host are alive"), std::string::npos);
}

TEST_F(StartupWatchTest, OtherHostsAreCountedAlone) {
  EXPECT_NE(late(4, 2).find("1 of the 2 ranks of this host have begun"), std::string::npos);
}

TEST_F(StartupWatchTest, AStartInTimeIsSilent) {
  bool called = false;
  {
    const StartupWatch watch(folder_, 0, 2, 2, 5, [&](const std::string&) { called = true; });
  }
  EXPECT_FALSE(called);
}

}  // namespace
}  // namespace weft
