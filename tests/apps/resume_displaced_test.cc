// Jobs under displaced patches that are killed go on from their newest exact step and make the same
// frames.
#include "tests/apps/resume_testing.h"

namespace weft::test {
namespace {

struct Patches {
  const char *name, *flags;
};
// Lets gtest print it.
void PrintTo(const Patches& patches, std::ostream* out) { *out << patches.name; }

class DisplacedResume : public Resume, public testing::WithParamInterface<Patches> {};

// 20 kills. A checkpoint is kept every fourth step.
TEST_P(DisplacedResume, KilledAtTwentyMomentsMakesTheSameFrames) {
  const auto arguments = [&](const std::string& clip) {
    return job(150, GetParam().flags + std::string(" --resync-every 4 -o ") + clip);
  };
  Child child = start(arguments(folder_ + "/whole.mp4") + " --json --overwrite");
  ASSERT_EQ(child.wait(), 0) << child.err();
  const std::string whole = nlohmann::json::parse(child.out()).at("framehash");
  EXPECT_NE(whole, hash_of(150));  // of full attention
  kill_twenty([&](const std::string& name) { return arguments(path(name + ".mp4")); }, whole, 4);
}

INSTANTIATE_TEST_SUITE_P(
    Methods, DisplacedResume,
    testing::Values(
        Patches{"DistriFusion",
                "--method distrifusion:patches=3,warmup=1 --ranks 3 --layout patch=3"},
        Patches{"PCPP", "--method pcpp:patches=3,window=0.5,warmup=1 --ranks 3 --layout patch=3"},
        Patches{"PipeFusion",
                "--method pipefusion:patches=3,warmup=1 --ranks 2 --layout layers=2"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace weft::test
