// Tests the reader with clips that were written as MP4 and read again.
#include <gtest/gtest.h>

#include "io/media/video.h"
#include "tests/bench/pocket/clip_reader.h"
#include "tests/support/clip.h"

namespace weft::pocket {
namespace {

TEST(ClipReader, AfterMp4) {
  const std::string path = testing::TempDir() + "weft_clip_video_test.mp4";
  const auto all = all_combinations();
  for (size_t i = 0; i < all.size(); i += 151) {
    ClipSpec spec = all[i];
    spec.size = Size(i % 2);
    VideoSettings settings;
    settings.width = settings.height = 128;
    auto sink = make_mp4_sink(path, settings, Overwrite::kReplace);
    for (const Frame& frame : draw_clip(spec, {}, i)) sink->push(frame);
    sink->finish();
    const ClipScore s =
        score(read_clip(read_video(path)), {spec.colour, spec.shape, spec.motion, spec.ground, {}});
    EXPECT_TRUE(s.colour && s.ground && s.shape && s.every_view && s.motion && !s.torn)
        << prompt_of(spec);
  }
  std::remove(path.c_str());
}

}  // namespace
}  // namespace weft::pocket
