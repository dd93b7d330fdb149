// Frames that a sink has kept are there for a later one, which goes on after them: every frame is
// in the file once, in order, at its time. What was written after them is replaced.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include "io/media/image.h"
#include "io/media/media_probe.h"
#include "io/media/segments.h"
#include "tests/io/io_testing.h"
#include "tests/io/media_testing.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;
constexpr int kKeptWidth = 64, kKeptHeight = 48, kFrames = 23;

VideoSettings settings_behind(int64_t kept) {
  VideoSettings settings;
  settings.width = kKeptWidth;
  settings.height = kKeptHeight;
  settings.deterministic = true;
  settings.metadata = {{"weft", "{\"job\":\"a\"}"}};
  settings.kept_frames = kept;
  settings.first_cut = 5;
  settings.cut = 4;
  return settings;
}

void push_kept(FrameSink& sink, int begin, int end) {
  for (int t = begin; t < end; ++t) sink.push(test_picture(kKeptWidth, kKeptHeight, t));
}

// Runs `act` in a process that is killed at its end.
template <class Act>
void killed(Act&& act) {
  const pid_t child = fork();
  if (child == 0) {
    act();
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
}

std::string name_of(const std::string& extension) {
  return extension == "/" ? "a/" : "a" + extension;
}

// All frames without interruption.
void write_whole(const std::string& path) {
  const auto sink = make_sink(path, settings_behind(0), Overwrite::kRefuse);
  push_kept(*sink, 0, kFrames);
  sink->finish();
}

void expect_same_files(const TempFolder& folder, const TempFolder& whole) {
  EXPECT_EQ(folder.entries(), whole.entries());
  for (const std::string& name : whole.entries())
    if (fs::is_regular_file(whole / name)) {
      EXPECT_TRUE(read_bytes(folder / name) == read_bytes(whole / name)) << name;
    }
}

class KeptFrames : public testing::TestWithParam<const char*> {};

// Kept at cuts, so that even the bytes are those of one run.
TEST_P(KeptFrames, AreNotWrittenAgain) {
  const TempFolder folder, whole;
  const std::string path = folder / name_of(GetParam());
  write_whole(whole / name_of(GetParam()));
  killed([&] {
    const auto sink = make_sink(path, settings_behind(0), Overwrite::kRefuse);
    push_kept(*sink, 0, 5);
    sink->keep();
    push_kept(*sink, 5, 13);
    sink->keep();
    push_kept(*sink, 13, 16);  // the next checkpoint is not whole yet
  });
  killed([&] {
    const auto sink = make_sink(path, settings_behind(5), Overwrite::kRefuse);
    push_kept(*sink, 5, 9);
    sink->keep();
    push_kept(*sink, 9, 13);
    sink->keep();
    sink->keep();
  });
  {
    const auto sink = make_sink(path, settings_behind(13), Overwrite::kRefuse);
    push_kept(*sink, 13, 17);
    sink->keep();
    push_kept(*sink, 17, 20);
  }  // stopped: what was kept stays
  const auto sink = make_sink(path, settings_behind(17), Overwrite::kRefuse);
  push_kept(*sink, 17, kFrames);
  sink->finish();
  if (fs::is_directory(path)) {
    for (int t = 0; t < kFrames; ++t) {
      char name[16];
      std::snprintf(name, sizeof name, "/%05d.png", t);
      EXPECT_EQ(read_png(path + name).rgb, test_picture(kKeptWidth, kKeptHeight, t).rgb) << t;
    }
    EXPECT_EQ(std::distance(fs::directory_iterator(path), {}), kFrames);
    return;
  }
  expect_same_files(folder, whole);
  EXPECT_EQ(read_video(path).size(), static_cast<size_t>(kFrames));
  EXPECT_NEAR(probe_media(path).seconds, kFrames / 16.0, 0.02);
}

TEST_P(KeptFrames, ThatAreGoneAreAnError) {
  for (const bool all : {true, false}) {
    const TempFolder folder;
    const std::string path = folder / name_of(GetParam());
    killed([&] {
      const auto sink = make_sink(path, settings_behind(0), Overwrite::kRefuse);
      push_kept(*sink, 0, 9);
      sink->keep();
      push_kept(*sink, 9, 13);
      sink->keep();
    });
    for (const std::string& name : folder.entries()) {
      if (all) {
        fs::remove_all(folder / name);
      } else if (fs::is_directory(folder / name)) {
        fs::remove(folder / name + "/00008.png");
      } else {
        const auto size = fs::file_size(folder / name);
        fs::resize_file(folder / name, size / 2);
      }
    }
    expect_output_error([&] { make_sink(path, settings_behind(13), Overwrite::kRefuse); });
    // A job that begins anew needs none of it, and leaves nothing of it.
    const auto anew = make_sink(path, settings_behind(0), Overwrite::kRefuse);
    push_kept(*anew, 0, 3);
    anew->finish();
    EXPECT_EQ(folder.entries(), Names{name_of(GetParam() == std::string("/") ? "" : GetParam())});
  }
}

// Pictures that the encoder reorders: a run of few frames before a cut or a checkpoint.
TEST_P(KeptFrames, MayBeKeptAnywhere) {
  const TempFolder folder;
  const std::string path = folder / name_of(GetParam());
  int64_t kept = 0;
  for (const int end : {1, 2, 4, 11, 12}) {
    const auto sink = make_sink(path, settings_behind(kept), Overwrite::kRefuse);
    push_kept(*sink, static_cast<int>(kept), end);
    sink->keep();
    kept = end;
  }
  const auto sink = make_sink(path, settings_behind(kept), Overwrite::kRefuse);
  push_kept(*sink, 12, kFrames);
  sink->finish();
  if (fs::is_directory(path)) return;
  const std::vector<Frame> frames = read_video(path);
  ASSERT_EQ(frames.size(), static_cast<size_t>(kFrames));
  for (int t = 0; t < kFrames; ++t) {  // the square moves, so every frame looks like itself alone
    const Frame drawn = test_picture(kKeptWidth, kKeptHeight, t);
    int64_t error = 0;
    for (size_t i = 0; i < drawn.rgb.size(); ++i)
      error += std::abs(int{drawn.rgb[i]} - int{frames[t].rgb[i]});
    EXPECT_LT(error / static_cast<double>(drawn.rgb.size()), 8) << t;
  }
  EXPECT_NEAR(probe_media(path).seconds, kFrames / 16.0, 0.02);
}

INSTANTIATE_TEST_SUITE_P(Formats, KeptFrames, testing::Values(".mp4", ".webm", ".gif", "/"),
                         [](const auto& info) {
                           const std::string name = info.param;
                           return name == "/" ? "Folder" : name.substr(1);
                         });

// Segments of 6 frames: what is whole stays as it is, and the one in work goes on.
TEST(KeptSegments, AreNotWrittenAgain) {
  for (const int kept : {4, 6, 9, 12, 17}) {
    const TempFolder folder, whole;
    const auto sink_behind = [&](const TempFolder& in, int64_t frames) {
      return make_segmented_sink(in / "a.mp4", settings_behind(frames), Overwrite::kReplace, 6);
    };
    const auto uninterrupted = sink_behind(whole, 0);
    push_kept(*uninterrupted, 0, kFrames);
    uninterrupted->finish();
    killed([&] {
      const auto sink = sink_behind(folder, 0);
      push_kept(*sink, 0, kept);
      sink->keep();
      push_kept(*sink, kept, kept + 5);
    });
    const auto sink = sink_behind(folder, kept);
    push_kept(*sink, kept, kFrames);
    sink->finish();
    EXPECT_EQ(folder.entries(), whole.entries());
    for (int64_t index = 0; index < 4; ++index) {
      const std::string path = segment_path(folder / "a.mp4", index);
      EXPECT_EQ(read_video(path).size(), index < 3 ? 6u : 5u) << kept;
      if (kept % 4 == 1 || kept % 6 == 0) {  // at a cut
        EXPECT_TRUE(read_bytes(path) == read_bytes(segment_path(whole / "a.mp4", index))) << kept;
      }
    }
  }
}

// The run before was killed after it had finished the last, short segment.
TEST(KeptSegments, OfAFinishedVideoStayAsTheyAre) {
  for (const int kept : {19, 22, kFrames}) {
    const TempFolder folder;
    const auto sink_behind = [&](int64_t frames) {
      return make_segmented_sink(folder / "a.mp4", settings_behind(frames), Overwrite::kReplace, 6);
    };
    killed([&] {
      const auto sink = sink_behind(0);
      push_kept(*sink, 0, kept);
      sink->keep();
      push_kept(*sink, kept, kFrames);
      sink->finish();
    });
    const std::string last = segment_path(folder / "a.mp4", 3);
    const auto bytes = read_bytes(last);
    const auto entries = folder.entries();
    const auto sink = sink_behind(kept);
    push_kept(*sink, kept, kFrames);
    EXPECT_EQ(sink->finish(), segment_path(folder / "a.mp4", 0));
    EXPECT_EQ(folder.entries(), entries);
    EXPECT_TRUE(read_bytes(last) == bytes) << kept;
    const auto longer = sink_behind(kept);
    push_kept(*longer, kept, kFrames);
    expect_output_error([&] { push_kept(*longer, kFrames, kFrames + 1); });
  }
}

TEST(KeptSegments, ThatAreGoneAreAnError) {
  const TempFolder folder;
  const auto sink_behind = [&](int64_t frames) {
    return make_segmented_sink(folder / "a.mp4", settings_behind(frames), Overwrite::kReplace, 6);
  };
  killed([&] {
    const auto sink = sink_behind(0);
    push_kept(*sink, 0, 14);
    sink->keep();
  });
  fs::remove(segment_path(folder / "a.mp4", 1));
  expect_output_error([&] { sink_behind(14); });
}

}  // namespace
}  // namespace weft::test
