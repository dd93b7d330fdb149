#include "io/media/segments.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>

#include "io/media/media_probe.h"
#include "tests/io/io_testing.h"
#include "tests/io/media_testing.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

VideoSettings settings_of(const std::string& job) {
  VideoSettings settings;
  settings.width = 64;
  settings.height = 48;
  settings.deterministic = true;
  settings.metadata = {{"weft", "{\"job\":\"" + job + "\"}"}};
  return settings;
}

void push_small(FrameSink& sink, int begin, int end) {
  for (int t = begin; t < end; ++t) sink.push(test_picture(64, 48, t));
}

TEST(Segments, AreNumberedBesideTheExtension) {
  EXPECT_EQ(segment_path("a/clip.mp4", 0), "a/clip.000.mp4");
  EXPECT_EQ(segment_path("clip.v2.webm", 12), "clip.v2.012.webm");
  EXPECT_EQ(segment_path("clip.mp4", 1234), "clip.1234.mp4");
}

// Every segment is the file that its frames alone would give, so the frames of all are those of one
// file but for the encoder's key frames.
TEST(Segments, HoldTheFramesOfOneFileInOrder) {
  for (const char* name : {"a.mp4", "a.webm"}) {
    const TempFolder folder;
    const std::string path = folder / name;
    const auto sink = make_segmented_sink(path, settings_of("a"), Overwrite::kRefuse, 10);
    push_small(*sink, 0, 25);
    EXPECT_EQ(sink->finish(), segment_path(path, 0));
    ASSERT_EQ(folder.entries().size(), 3u);
    int frame = 0;
    for (int index = 0; index < 3; ++index) {
      const std::string alone = folder / ("alone_" + std::to_string(index) + name);
      const auto one = make_sink(alone, settings_of("a"), Overwrite::kRefuse);
      const int end = std::min(frame + 10, 25);
      push_small(*one, frame, end);
      one->finish();
      EXPECT_EQ(read_bytes(segment_path(path, index)), read_bytes(alone)) << index;
      EXPECT_EQ(static_cast<int>(read_video(segment_path(path, index)).size()), end - frame);
      frame = end;
    }
  }
}

// Flat pictures of grays that are five levels apart: no frame is lost, repeated or moved.
TEST(Segments, ReadBackAreTheFramesOfOneFile) {
  const TempFolder folder;
  const auto gray = [](int t) {
    Frame frame(64, 48);
    std::ranges::fill(frame.rgb, static_cast<uint8_t>(20 + 5 * t));
    return frame;
  };
  const auto whole = make_sink(folder / "whole.mp4", settings_of("a"), Overwrite::kRefuse);
  const auto sink = make_segmented_sink(folder / "a.mp4", settings_of("a"), Overwrite::kRefuse, 12);
  for (int t = 0; t < 40; ++t) {
    whole->push(gray(t));
    sink->push(gray(t));
  }
  whole->finish();
  sink->finish();
  std::vector<Frame> frames;
  for (int index = 0; index < 4; ++index)
    for (Frame& frame : read_video(segment_path(folder / "a.mp4", index)))
      frames.push_back(std::move(frame));
  const std::vector<Frame> expected = read_video(folder / "whole.mp4");
  ASSERT_EQ(frames.size(), expected.size());
  for (size_t f = 0; f < frames.size(); ++f)
    for (size_t k = 0; k < frames[f].rgb.size(); ++k)
      ASSERT_NEAR(frames[f].rgb[k], expected[f].rgb[k], 2) << f;
}

// Open-ended jobs end anywhere: at the border of segments no empty file follows.
TEST(Segments, AVideoMayEndAtAnyFrame) {
  for (const int frames : {1, 3, 4, 5, 8}) {
    const TempFolder folder;
    const auto sink =
        make_segmented_sink(folder / "a.mp4", settings_of("a"), Overwrite::kRefuse, 4);
    push_small(*sink, 0, frames);
    sink->finish();
    int64_t sum = 0;
    for (const std::string& name : folder.entries()) sum += probe_media(folder / name).frames;
    EXPECT_EQ(sum, frames);
    EXPECT_EQ(static_cast<int>(folder.entries().size()), (frames + 3) / 4);
  }
  const TempFolder folder;
  const auto empty = make_segmented_sink(folder / "a.mp4", settings_of("a"), Overwrite::kRefuse, 4);
  expect_output_error([&] { empty->finish(); });
}

TEST(Segments, AppearWholeWhileLaterOnesAreWritten) {
  const TempFolder folder;
  auto sink = make_segmented_sink(folder / "a.mp4", settings_of("a"), Overwrite::kRefuse, 4);
  EXPECT_EQ(folder.entries(), Names{".a.000.part.mp4"});
  push_small(*sink, 0, 3);
  EXPECT_EQ(folder.entries(), Names{".a.000.part.mp4"});
  push_small(*sink, 3, 4);
  EXPECT_EQ(folder.entries(), Names{"a.000.mp4"});
  push_small(*sink, 4, 6);
  EXPECT_EQ(folder.entries(), (Names{".a.001.part.mp4", "a.000.mp4"}));
  EXPECT_EQ(read_video(folder / "a.000.mp4").size(), 4u);
  sink.reset();  // the job failed: whole segments stay
  EXPECT_EQ(folder.entries(), Names{"a.000.mp4"});
}

// The same job goes on after whole segments; frames of kept segments are not written again.
TEST(Segments, AKilledJobGoesOnBehindItsWholeSegments) {
  const TempFolder folder;
  const std::string path = folder / "a.mp4";
  const pid_t child = fork();
  if (child == 0) {
    const auto sink = make_segmented_sink(path, settings_of("a"), Overwrite::kRefuse, 4);
    push_small(*sink, 0, 10);
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(folder.entries(), (Names{".a.002.part.mp4", "a.000.mp4", "a.001.mp4"}));
  const auto kept = fs::last_write_time(segment_path(path, 1));
  const auto sink = make_segmented_sink(path, settings_of("a"), Overwrite::kRefuse, 4);
  EXPECT_EQ(folder.entries(), (Names{"a.000.mp4", "a.001.mp4"}));
  push_small(*sink, 0, 10);
  sink->finish();
  EXPECT_EQ(folder.entries(), (Names{"a.000.mp4", "a.001.mp4", "a.002.mp4"}));
  EXPECT_EQ(fs::last_write_time(segment_path(path, 1)), kept);
  EXPECT_EQ(read_video(segment_path(path, 2)).size(), 2u);
}

TEST(Segments, OfAnotherJobAreReplacedOnlyIfAskedFor) {
  const TempFolder folder;
  const std::string path = folder / "a.mp4";
  const auto write = [&](const std::string& job, Overwrite overwrite, int frames) {
    const auto sink = make_segmented_sink(path, settings_of(job), overwrite, 4);
    push_small(*sink, 0, frames);
    sink->finish();
  };
  write("a", Overwrite::kRefuse, 14);
  EXPECT_EQ(folder.entries().size(), 4u);
  expect_output_error([&] { write("b", Overwrite::kRefuse, 6); });
  EXPECT_EQ(folder.entries().size(), 4u);
  const std::string before = read_bytes(segment_path(path, 0));
  write("b", Overwrite::kReplace, 6);
  EXPECT_EQ(folder.entries(), (Names{"a.000.mp4", "a.001.mp4"}));
  EXPECT_NE(read_bytes(segment_path(path, 0)), before);
  // Files that only look alike are nobody's segments.
  std::ofstream(folder / "a.12.mp4") << "x";
  std::ofstream(folder / "a.000x.mp4") << "x";
  write("b", Overwrite::kRefuse, 6);
  EXPECT_EQ(folder.entries(), (Names{"a.000.mp4", "a.000x.mp4", "a.001.mp4", "a.12.mp4"}));
}

}  // namespace
}  // namespace weft::test
