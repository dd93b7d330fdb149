// Nothing remains of an output if any one of the calls that write it fails.
#include <vector>

#include "io/atomic_file.h"
#include "io/weights/tensor_file.h"
#include "tests/faults/inject.h"
#include "tests/faults/small_clip.h"
#include "tests/io/io_testing.h"

namespace weft {
namespace {

using test::expect_error;
using test::Fault;
using test::read_bytes;
using test::small_clip;
using test::TempDir;

constexpr const char* kFaults[] = {"write:%:ENOSPC", "write:%:EIO",   "write:%:EDQUOT",
                                   "fsync:%:EIO",    "close:%:EIO",   "rename:%:EROFS",
                                   "open:%:EMFILE",  "fsync:%:ENOSPC"};

// Returns the fault rule for files in `dir`, from the nth call on.
std::string rule_of(std::string pattern, const TempDir& dir, int nth) {
  return pattern.replace(pattern.find('%'), 1, dir.path() + ":" + std::to_string(nth));
}

// Makes `write` fail at its 1st, 2nd, ... call of every kind, until there are no more calls. Each
// time it must throw Error(kOutput) and leave nothing in the folder. At least `least` faults must
// occur.
template <class Write>
void expect_nothing_is_left(int least, Write&& write) {
  int failures = 0;
  for (const char* pattern : kFaults) {
    for (int nth = 1;; ++nth) {
      TempDir dir;
      const Fault fault(rule_of(pattern, dir, nth));
      SCOPED_TRACE(std::string(pattern) + " " + std::to_string(nth));
      try {
        write(dir);
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kOutput) << error.what();
        EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
        ++failures;
        // A published file is kept if only the folder could not be synced.
        if (dir.entries() > 0) {
          EXPECT_EQ(dir.entries(), 1u);
          EXPECT_TRUE(std::string(pattern).starts_with("fsync") ||
                      std::string(pattern).starts_with("open"))
              << error.what();
        }
        for (const auto& entry : std::filesystem::directory_iterator(dir.path()))
          EXPECT_FALSE(entry.path().filename().string().starts_with(".")) << entry.path();
      }
      if (fault.hits() == 0) break;
      if (testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GE(failures, least);
}

TEST(Writing, SafetensorsAppearWholeOrNotAtAll) {
  const Tensor value(DType::kF32, {1000});
  expect_nothing_is_left(10, [&](const TempDir& dir) {
    write_safetensors(dir / "a.safetensors", {{"a", value.view()}});
  });
}

TEST(Writing, TextAppearsWholeOrNotAtAll) {
  expect_nothing_is_left(8, [](const TempDir& dir) { write_file(dir / "a.json", "{}"); });
}

class Sinks : public testing::TestWithParam<const char*> {
 protected:
  static void write(const std::string& path) {
    const auto sink = make_sink(path, small_clip(), Overwrite::kRefuse);
    const bool picture = path.ends_with(".png");
    for (int i = 0; i < (picture ? 1 : 3); ++i) {
      Frame frame(32, 16);
      for (size_t k = 0; k < frame.rgb.size(); ++k)
        frame.rgb[k] = static_cast<uint8_t>(k * 37 + static_cast<size_t>(i));
      sink->push(frame);
    }
    sink->finish();
  }
};

TEST_P(Sinks, LeaveNothingBehindAFault) {
  expect_nothing_is_left(6, [](const TempDir& dir) { write(dir / GetParam()); });
}

TEST_P(Sinks, GoOnAfterShortWrites) {
  TempDir dir;
  write(dir / GetParam());
  TempDir other;
  const Fault fault("write:" + other.path() + ":1:short");
  write(other / GetParam());
  EXPECT_GT(fault.hits(), 0);
  const std::string name = std::string(GetParam()).ends_with('/') ? "a/00002.png" : GetParam();
  EXPECT_EQ(read_bytes(other / name), read_bytes(dir / name));
}

TEST_P(Sinks, NeedTheirEncoder) {
  const std::string name = GetParam();
  if (name != "a.mp4" && name != "a.webm") GTEST_SKIP() << "no encoder is asked for by name";
  TempDir dir;
  const Fault fault("encoder:lib:1:missing");
  expect_error(ErrorKind::kOutput, "has no video encoder 'lib", [&] { write(dir / GetParam()); });
  EXPECT_EQ(dir.entries(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Formats, Sinks, testing::Values("a.mp4", "a.webm", "a.gif", "a.png", "a/"),
                         [](const auto& info) {
                           const std::string name = info.param;
                           return name.ends_with('/') ? std::string("folder") : name.substr(2);
                         });

}  // namespace
}  // namespace weft
