// The file of previews: its name, its pictures, and that it is replaced in one step.
#include "apps/preview/preview_file.h"

#include <gtest/gtest.h>

#include "io/media/image.h"
#include "io/media/media_probe.h"
#include "tests/io/media_testing.h"

namespace weft {
namespace {

Preview three_pictures() {
  Preview preview{.step = 1, .total = 2, .fps = 4};
  for (int i = 0; i < 3; ++i) preview.frames.push_back(test_picture(32, 16, i));
  return preview;
}

TEST(PreviewFile, IsAGifOfAllPicturesOrAPngOfTheMiddleOne) {
  const TempFolder folder;
  write_preview(folder / "a.png", three_pictures());
  EXPECT_EQ(read_png(folder / "a.png").rgb, test_picture(32, 16, 1).rgb);
  for (int i = 0; i < 2; ++i) write_preview(folder / "a.gif", three_pictures());  // replaces
  const MediaInfo info = probe_media(folder / "a.gif");
  EXPECT_EQ(info.frames, 3);
  EXPECT_EQ(info.width, 32);
  EXPECT_NEAR(info.fps, 4, 0.01);
  EXPECT_EQ(folder.entries(), (std::vector<std::string>{"a.gif", "a.png"}));
}

TEST(PreviewFile, ANewOneThatCannotBeWrittenLeavesTheOldOne) {
  const TempFolder folder;
  for (const char* name : {"a.png", "a.gif"}) {
    write_preview(folder / name, three_pictures());
    const FileSizeLimit limit(60);
    EXPECT_EQ(test::error_kind([&] { write_preview(folder / name, three_pictures()); }),
              ErrorKind::kOutput);
    EXPECT_EQ(probe_media(folder / name).width, 32);
  }
}

// Returns the path that the flags give, or the message of the refusal.
std::string path_of(const std::vector<std::string>& words, bool several = false,
                    int64_t frames = 9) {
  try {
    return preview_path(Flags::parse(kGenerate, words), "out/clip.mp4", several, frames);
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(PreviewFile, LiesBesideTheOutputOrWhereTheFlagSays) {
  EXPECT_EQ(path_of({}), "");
  EXPECT_EQ(path_of({"--preview", "proj"}), "out/clip.preview.gif");
  EXPECT_EQ(path_of({"--preview", "proj"}, true, 1), "out/clip.preview.png");
  EXPECT_EQ(path_of({"--preview", "proj", "--preview-path", "p.png"}), "p.png");
  const auto refuses = [](const std::string& message, const std::string& legal) {
    EXPECT_NE(message.find(legal), std::string::npos) << message;
  };
  refuses(path_of({"--preview-path", "p.png"}), "legal: with --preview proj");
  refuses(path_of({"--preview", "proj", "--preview-path", "p.mp4"}), "ends in .png or .gif");
  refuses(path_of({"--preview", "proj", "--preview-path", "p.png"}, true), "with one drawing");
  refuses(path_of({"--preview", "tae"}), "legal: none|proj");
}

}  // namespace
}  // namespace weft
