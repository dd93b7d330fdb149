// Runs every committed input through its target. Among them is each input that once was a finding.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <vector>

#include "tests/fuzz/targets.h"

namespace weft::fuzz {
namespace {

namespace fs = std::filesystem;

class Corpus : public testing::TestWithParam<Target> {};

TEST_P(Corpus, IsReadOrRefused) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(fs::path("tests/fuzz/corpus") / GetParam().name))
    paths.push_back(entry.path());
  std::ranges::sort(paths);
  EXPECT_GE(paths.size(), 3u);
  GetParam().run({});
  for (const fs::path& path : paths) {
    SCOPED_TRACE(path);
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    // Each input is also run cut in half, because files may end early.
    for (const size_t size : {bytes.size(), bytes.size() / 2})
      GetParam().run({reinterpret_cast<const uint8_t*>(bytes.data()), size});
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, Corpus, testing::ValuesIn(targets().begin(), targets().end()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Corpus, HasATargetForEveryFolder) {
  for (const auto& entry : fs::directory_iterator("tests/fuzz/corpus"))
    EXPECT_TRUE(std::ranges::any_of(targets(), [&](const Target& target) {
      return entry.path().filename() == target.name;
    })) << entry.path();
}

}  // namespace
}  // namespace weft::fuzz
