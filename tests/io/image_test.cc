#include "io/media/image.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "kernels/check.h"
#include "tests/io/media_testing.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

TEST(Png, RoundTripIsExactWithItsTexts) {
  const TempFolder folder;
  const Frame frame = test_picture(37, 21, 1);
  const std::map<std::string, std::string> texts{{"parameters", "a ball\nSteps: 20, Seed: 7"},
                                                 {"weft", "{\"prompt\":\"un café, 球\"}"}};
  write_png(folder / "a.png", frame, texts, Overwrite::kRefuse);
  PngInfo info;
  EXPECT_EQ(read_png(folder / "a.png", &info).rgb, frame.rgb);
  EXPECT_EQ(info.width, 37);
  EXPECT_EQ(info.height, 21);
  EXPECT_EQ(info.bit_depth, 8);
  EXPECT_EQ(info.channels, 3);
  EXPECT_EQ(info.texts, texts);
  EXPECT_EQ(probe_png(folder / "a.png").texts, texts);
  EXPECT_EQ(folder.entries(), std::vector<std::string>{"a.png"});
}

TEST(Png, SinkRefusesASecondFrameAndLeavesNothing) {
  const TempFolder folder;
  VideoSettings settings;
  settings.width = settings.height = 8;
  {
    auto sink = make_sink(folder / "a.png", settings, Overwrite::kRefuse);
    sink->push(test_picture(8, 8, 0));
    EXPECT_EQ(error_kind([&] { sink->push(test_picture(8, 8, 1)); }), ErrorKind::kUsage);
  }
  EXPECT_TRUE(folder.entries().empty());
}

TEST(Png, FolderOfFramesAppearsWhole) {
  const TempFolder folder;
  VideoSettings settings;
  settings.width = settings.height = 8;
  settings.metadata["parameters"] = "x";
  auto sink = make_sink(folder / "deep/frames/", settings, Overwrite::kRefuse);
  for (int i = 0; i < 3; ++i) sink->push(test_picture(8, 8, i));
  EXPECT_FALSE(fs::exists(folder / "deep/frames"));
  EXPECT_EQ(sink->finish(), folder / "deep/frames/");
  for (int i = 0; i < 3; ++i) {
    PngInfo info;
    const std::string path = folder / ("deep/frames/0000" + std::to_string(i) + ".png");
    EXPECT_EQ(read_png(path, &info).rgb, test_picture(8, 8, i).rgb);
    EXPECT_EQ(info.texts.at("parameters"), "x");
  }
  sink.reset();
  EXPECT_FALSE(fs::exists(folder / "deep/.frames.part"));

  // The folder exists now. It is refused without kReplace, and replaced completely with it.
  EXPECT_EQ(error_kind([&] { make_sink(folder / "deep/frames/", settings, Overwrite::kRefuse); }),
            ErrorKind::kOutput);
  sink = make_sink(folder / "deep/frames/", settings, Overwrite::kReplace);
  sink->push(test_picture(8, 8, 9));
  sink->finish();
  EXPECT_FALSE(fs::exists(folder / "deep/frames/00001.png"));
  EXPECT_EQ(read_png(folder / "deep/frames/00000.png").rgb, test_picture(8, 8, 9).rgb);
  EXPECT_FALSE(fs::exists(folder / "deep/.frames.part"));

  // A folder that contains anything else is never replaced.
  std::ofstream(folder / "deep/frames/notes.txt") << "mine";
  EXPECT_EQ(error_kind([&] { make_sink(folder / "deep/frames/", settings, Overwrite::kReplace); }),
            ErrorKind::kOutput);
  EXPECT_TRUE(fs::exists(folder / "deep/frames/notes.txt"));
}

TEST(Png, AnAbandonedSinkTakesTheFoldersItMadeWithIt) {
  const TempFolder folder;
  VideoSettings settings;
  make_sink(folder / "a/b/c/frames/", settings, Overwrite::kRefuse)->push(test_picture(8, 8, 0));
  EXPECT_TRUE(folder.entries().empty());
}

// A header that announces a picture of gigabytes must be refused before decoding starts.
TEST(Png, HostileFilesAreRefused) {
  const TempFolder folder;
  const std::string good = encode_png(test_picture(16, 16, 0), {});
  const auto refused = [&](const std::string& name, const std::string& bytes) {
    std::ofstream(folder / name, std::ios::binary) << bytes;
    return error_kind([&] { read_png(folder / name); });
  };
  EXPECT_EQ(refused("empty", ""), ErrorKind::kMedia);
  EXPECT_EQ(refused("text", "hello, this is no picture"), ErrorKind::kMedia);
  for (const size_t cut : {8u, 20u, 40u, 100u})
    EXPECT_EQ(refused("cut", good.substr(0, cut)), ErrorKind::kMedia) << cut;
  std::string wrong = good;
  wrong[good.size() / 2] ^= 0x55;
  EXPECT_EQ(refused("flipped", wrong), ErrorKind::kMedia);
  std::string huge = good;
  huge[18] = 0x7f;  // width 32,528: the side limit (its checksum is wrong too)
  EXPECT_EQ(refused("huge", huge), ErrorKind::kMedia);
  EXPECT_EQ(error_kind([&] { read_png(folder / "none.png"); }), ErrorKind::kMedia);
  EXPECT_EQ(error_kind([&] { read_png(folder.path()); }), ErrorKind::kMedia);
}

TEST(Png, FaultsOfTheOutputAreOneLineAndLeaveNothing) {
  const TempFolder folder;
  const Frame frame = test_picture(64, 64, 0);
  std::ofstream(folder / "file") << "x";
  expect_output_error([&] { write_png(folder / "file/a.png", frame, {}, Overwrite::kRefuse); });
  expect_output_error([&] { write_png("/proc/weft/a.png", frame, {}, Overwrite::kRefuse); });
  expect_output_error([&] { write_png(folder.path() + "/", frame, {}, Overwrite::kRefuse); },
                      ErrorKind::kOutput);
  {
    const FileSizeLimit limit(100);
    expect_output_error([&] { write_png(folder / "big.png", frame, {}, Overwrite::kRefuse); });
  }
  write_png(folder / "a.png", frame, {}, Overwrite::kRefuse);
  expect_output_error([&] { write_png(folder / "a.png", frame, {}, Overwrite::kRefuse); });
  write_png(folder / "a.png", test_picture(8, 8, 0), {}, Overwrite::kReplace);
  EXPECT_EQ(read_png(folder / "a.png").width, 8);
  EXPECT_EQ(folder.entries(), (std::vector<std::string>{"a.png", "file"}));
}

}  // namespace
}  // namespace weft::test
