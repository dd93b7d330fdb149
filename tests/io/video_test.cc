#include "io/media/video.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <thread>

#include "io/media/image.h"
#include "io/media/media_probe.h"
#include "tests/io/io_testing.h"
#include "tests/io/media_testing.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

VideoSettings video_settings(int width, int height) {
  VideoSettings settings;
  settings.width = width;
  settings.height = height;
  settings.threads = 1;
  settings.metadata = {{"parameters", "a ball\nSteps: 20"}, {"weft", "{\"prompt\":\"café 球\"}"}};
  return settings;
}

std::string write_clip(const std::string& path, const VideoSettings& settings, int frames,
                       Overwrite overwrite = Overwrite::kRefuse) {
  auto sink = make_sink(path, settings, overwrite);
  for (int t = 0; t < frames; ++t) sink->push(test_picture(settings.width, settings.height, t));
  return sink->finish();
}

double psnr(const Frame& a, const Frame& b) {
  double sum = 0;
  for (size_t i = 0; i < a.rgb.size(); ++i) {
    const double d = double(a.rgb[i]) - b.rgb[i];
    sum += d * d;
  }
  return 10 * std::log10(255.0 * 255 * static_cast<double>(a.rgb.size()) / std::max(sum, 1e-9));
}

struct Format {
  const char* name;
  const char* container;
  const char* codec;
};
const Format kFormats[] = {
    {"a.mp4", "mp4", "h264"}, {"a.webm", "webm", "vp9"}, {"a.gif", "gif", "gif"}};

TEST(Video, EveryFormatHoldsEveryFrameInOrder) {
  for (const Format& format : kFormats) {
    const TempFolder folder;
    const std::string path = folder / format.name;
    EXPECT_EQ(write_clip(path, video_settings(96, 64), 40), path);
    const auto frames = read_video(path);
    ASSERT_EQ(frames.size(), 40u) << format.name;
    for (int t = 0; t < 40; ++t) {
      // Neighbouring frames differ by two columns at the square's edges, so their PSNR is far
      // lower.
      const double right = psnr(frames[t], test_picture(96, 64, t));
      EXPECT_GT(right, 33) << format.name << " " << t;
      if (t > 0) {
        EXPECT_GT(right, psnr(frames[t], test_picture(96, 64, t - 1))) << t;
      }
    }
    const MediaInfo info = probe_media(path);
    EXPECT_EQ(info.container, format.container);
    EXPECT_EQ(info.codec, format.codec);
    EXPECT_EQ(info.width, 96);
    EXPECT_EQ(info.height, 64);
    EXPECT_EQ(info.frames, 40);
    EXPECT_NEAR(info.fps, 16, 0.1) << format.name;
    EXPECT_NEAR(info.seconds, 2.5, 0.02) << format.name;
    EXPECT_EQ(folder.entries(), std::vector<std::string>{format.name});
  }
}

TEST(Video, OneFrameAndFractionalRates) {
  const TempFolder folder;
  VideoSettings settings = video_settings(32, 32);
  settings.fps_num = 24000;
  settings.fps_den = 1001;
  for (const char* name : {"a.mp4", "a.webm", "a.gif"}) {
    write_clip(folder / name, settings, 1);
    EXPECT_EQ(read_video(folder / name).size(), 1u) << name;
  }
  write_clip(folder / "b.mp4", settings, 48);
  EXPECT_NEAR(probe_media(folder / "b.mp4").fps, 24000 / 1001.0, 1e-3);
  EXPECT_NEAR(probe_media(folder / "b.mp4").seconds, 48 * 1001 / 24000.0, 2e-3);
}

// Flat colours have no edges and no chroma detail to lose: what remains is the rounding of Y'CbCr
// in limited range (a step of 255/219 in Y', 255/224 in Cb and Cr) and the codec at a fine
// quantiser. Rounding each to half a step moves B by at most 0.58 + 1.8556 * 0.57 = 1.64 and the
// other channels less; the way back rounds by half a level: 2.2. One step of the codec's own in Y'
// adds 1.2.
TEST(Video, ColoursAreExactUpToRounding) {
  const TempFolder folder;
  const uint8_t colours[][3] = {{220, 40, 40},   {40, 180, 70},   {50, 90, 225},   {235, 205, 50},
                                {150, 60, 190},  {240, 130, 30},  {240, 240, 240}, {60, 205, 215},
                                {12, 12, 16},    {110, 110, 115}, {18, 26, 74},    {92, 58, 32},
                                {255, 255, 255}, {0, 0, 0},       {255, 0, 0},     {0, 0, 255}};
  for (const char* name : {"a.mp4", "a.webm"})
    for (const auto& colour : colours) {
      Frame frame(64, 64);
      for (size_t i = 0; i < frame.rgb.size(); ++i) frame.rgb[i] = colour[i % 3];
      auto sink = make_sink(folder / name, video_settings(64, 64), Overwrite::kReplace);
      for (int t = 0; t < 3; ++t) sink->push(frame);
      sink->finish();
      for (const Frame& back : read_video(folder / name))
        for (size_t i = 0; i < back.rgb.size(); ++i)
          ASSERT_NEAR(int(back.rgb[i]), int(colour[i % 3]), 3.4)
              << name << " " << int(colour[0]) << " " << int(colour[1]) << " " << int(colour[2]);
    }
  EXPECT_EQ(probe_media(folder / "a.mp4").colour, "bt709 limited");
  EXPECT_EQ(probe_media(folder / "a.mp4").pixel_format, "yuv420p");
}

TEST(Video, MetadataComesBack) {
  const TempFolder folder;
  for (const char* name : {"a.mp4", "a.webm"}) {
    const VideoSettings settings = video_settings(32, 32);
    write_clip(folder / name, settings, 2);
    const auto metadata = probe_media(folder / name).metadata;
    for (const char* key : {"parameters", "weft"})
      EXPECT_EQ(metadata.at(key), settings.metadata.at(key)) << name;
    EXPECT_EQ(metadata.at("comment"), settings.metadata.at("weft")) << name;
  }
}

TEST(Video, TheIndexOfAnMp4StandsInFront) {
  const TempFolder folder;
  write_clip(folder / "a.mp4", video_settings(64, 64), 40);
  const std::string bytes = read_bytes(folder / "a.mp4");
  const size_t index = bytes.find("moov"), data = bytes.find("mdat");
  ASSERT_NE(index, std::string::npos);
  ASSERT_NE(data, std::string::npos);
  EXPECT_LT(index, data);
  EXPECT_FALSE(contains(bytes, "moof"));
}

TEST(Video, DeterministicBytes) {
  const TempFolder folder;
  for (const char* extension : {".mp4", ".webm", ".gif"}) {
    VideoSettings settings = video_settings(64, 64);
    settings.deterministic = true;
    settings.threads = 1;
    write_clip(folder / ("a" + std::string(extension)), settings, 20);
    settings.threads = 4;
    write_clip(folder / ("b" + std::string(extension)), settings, 20);
    EXPECT_TRUE(read_bytes(folder / ("a" + std::string(extension))) ==
                read_bytes(folder / ("b" + std::string(extension))))
        << extension;
  }
}

// For pictures of two macroblocks, x264 with a lookahead gives other bytes once in 500 encodes.
TEST(Video, TinyPicturesHaveOneEncoding) {
  constexpr int kEncodes = 1000;
  const TempFolder folder;
  std::set<std::string> encodings;
  uint32_t seed = 1;
  for (int run = 0; run < kEncodes; ++run) {
    // The heap's layout differs each time, as it does between two programs.
    std::vector<std::vector<char>> heap(40);
    for (auto& block : heap) block.resize((seed = seed * 1664525u + 1013904223u) % 20000);
    for (size_t i = 0; i < heap.size(); i += 2) heap[i] = {};
    VideoSettings settings = video_settings(32, 16);
    settings.deterministic = true;
    const auto sink = make_sink(folder / "tiny.mp4", settings, Overwrite::kReplace);
    Frame frame(settings.width, settings.height);
    for (int i = 0; i < 3; ++i) {
      for (size_t k = 0; k < frame.rgb.size(); ++k)
        frame.rgb[k] = static_cast<uint8_t>(k * 37 + static_cast<size_t>(i));
      sink->push(frame);
    }
    sink->finish();
    encodings.insert(read_bytes(folder / "tiny.mp4"));
  }
  EXPECT_EQ(encodings.size(), 1u);
}

uint64_t anonymous_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("RssAnon:")) return std::stoull(line.substr(8)) * 1024;
  return 0;
}

// Small blocks that stay lie between the encoder's and keep the heap from shrinking by itself.
TEST(Video, AnEndedEncoderGivesItsPagesBack) {
  const TempFolder folder;
  VideoSettings settings = video_settings(256, 256);
  settings.cut = 32;
  const auto sink = make_sink(folder / "a.mp4", settings, Overwrite::kRefuse);
  std::vector<std::unique_ptr<char[]>> blocks;
  for (int t = 0; t < 4 * settings.cut; ++t) {
    const uint64_t before = anonymous_bytes();
    sink->push(test_picture(256, 256, t));
    blocks.push_back(std::make_unique<char[]>(1000));
    if (t == 0 && mallinfo2().arena < (1 << 20))
      GTEST_SKIP() << "a sanitizer's allocator keeps freed memory";
    if (settings.cuts_at(t + 1)) {
      EXPECT_GT(before, anonymous_bytes() + (4 << 20)) << t;
    }
  }
  sink->finish();
}

TEST(Video, APartFileIsReadableWhileItGrows) {
  const TempFolder folder;
  auto sink = make_sink(folder / "a.mp4", video_settings(64, 64), Overwrite::kRefuse);
  for (int t = 0; t < 200; ++t) sink->push(test_picture(64, 64, t % 20));
  EXPECT_EQ(folder.entries(), std::vector<std::string>{".a.part.mp4"});
  // This is the file that a killed job would leave. It contains whole groups of pictures.
  fs::copy_file(folder / ".a.part.mp4", folder / "killed.mp4");
  EXPECT_GT(read_video(folder / "killed.mp4").size(), 60u);
  sink.reset();
  EXPECT_EQ(folder.entries(), std::vector<std::string>{"killed.mp4"});
}

TEST(Video, AnExistingFileStaysUnlessAskedFor) {
  for (const char* name : {"a.mp4", "a.webm", "a.gif"}) {
    const TempFolder folder;
    std::ofstream(folder / name) << "mine";
    expect_output_error([&] { write_clip(folder / name, video_settings(32, 32), 2); });
    EXPECT_EQ(read_bytes(folder / name), "mine");
    write_clip(folder / name, video_settings(32, 32), 2, Overwrite::kReplace);
    EXPECT_EQ(read_video(folder / name).size(), 2u);

    // Another program creates the file while the job runs.
    auto sink =
        make_sink(folder / ("b" + std::string(name)), video_settings(32, 32), Overwrite::kRefuse);
    sink->push(test_picture(32, 32, 0));
    std::ofstream(folder / ("b" + std::string(name))) << "late";
    expect_output_error([&] { sink->finish(); });
    sink.reset();
    EXPECT_EQ(read_bytes(folder / ("b" + std::string(name))), "late");
    EXPECT_EQ(folder.entries(), (std::vector<std::string>{name, "b" + std::string(name)}));
  }
}

TEST(Video, TwoJobsDoNotShareAName) {
  const TempFolder folder;
  auto first = make_sink(folder / "a.mp4", video_settings(32, 32), Overwrite::kReplace);
  expect_output_error(
      [&] { make_sink(folder / "a.mp4", video_settings(32, 32), Overwrite::kReplace); });
  first->push(test_picture(32, 32, 0));
  first->finish();
  EXPECT_EQ(read_video(folder / "a.mp4").size(), 1u);
}

TEST(Video, APartLeftByAKilledJobIsTakenOver) {
  const TempFolder folder;
  std::ofstream(folder / ".a.part.mp4") << std::string(100000, 'x');
  write_clip(folder / "a.mp4", video_settings(32, 32), 3);
  EXPECT_EQ(read_video(folder / "a.mp4").size(), 3u);
  EXPECT_EQ(folder.entries(), std::vector<std::string>{"a.mp4"});
}

// Noise does not compress, so the limit is reached soon: while frames are pushed, or in the last
// step.
TEST(Video, AFullDiskLeavesNothing) {
  for (const char* name : {"a.mp4", "a.webm", "a.gif", "frames/"})
    for (const rlim_t bytes : {rlim_t{200}, rlim_t{30000}}) {
      const TempFolder folder;
      const FileSizeLimit limit(bytes);
      expect_output_error([&] {
        auto sink = make_sink(folder / name, video_settings(128, 128), Overwrite::kRefuse);
        Frame frame(128, 128);
        uint32_t state = 1;
        for (int t = 0; t < 40; ++t) {
          for (uint8_t& value : frame.rgb)
            value = static_cast<uint8_t>((state = state * 1664525u + 1013904223u) >> 24);
          sink->push(frame);
        }
        sink->finish();
      });
      EXPECT_TRUE(folder.entries().empty()) << name << " " << bytes;
    }
}

// The limit lies between the sizes of the fragments, which fit, and of the final file, which does
// not.
TEST(Video, AFullDiskInTheLastStepLeavesNothing) {
  const TempFolder folder;
  auto sink = make_sink(folder / "a.mp4", video_settings(64, 64), Overwrite::kRefuse);
  for (int t = 0; t < 30; ++t) sink->push(test_picture(64, 64, t));
  {
    const FileSizeLimit limit(700);
    expect_output_error([&] { sink->finish(); });
  }
  sink.reset();
  EXPECT_TRUE(folder.entries().empty());
}

TEST(Video, PlacesThatCannotBeWritten) {
  const TempFolder folder;
  std::ofstream(folder / "file") << "x";
  for (const char* name : {"a.mp4", "a.webm", "a.gif", "a.png", "frames/"}) {
    const VideoSettings settings = video_settings(32, 32);
    expect_output_error(
        [&] { make_sink(folder / ("file/" + std::string(name)), settings, Overwrite::kRefuse); });
    expect_output_error(
        [&] { make_sink("/proc/none/" + std::string(name), settings, Overwrite::kRefuse); });
  }
  EXPECT_EQ(folder.entries(), std::vector<std::string>{"file"});
}

TEST(Video, UsageErrorsNameWhatIsLegal) {
  const TempFolder folder;
  const auto usage = [&](const std::string& name, const VideoSettings& settings) {
    expect_output_error([&] { make_sink(folder / name, settings, Overwrite::kRefuse); },
                        ErrorKind::kUsage);
  };
  usage("a.mp4", video_settings(33, 32));
  usage("a.webm", video_settings(32, 33));
  usage("a.avi", video_settings(32, 32));
  usage("a", video_settings(32, 32));
  VideoSettings settings = video_settings(32, 32);
  settings.encoder = "no-such-encoder";
  expect_output_error([&] { make_sink(folder / "a.mp4", settings, Overwrite::kRefuse); });
  expect_output_error(
      [&] { make_sink(folder / "b.mp4", video_settings(32, 32), Overwrite::kRefuse)->finish(); });
  EXPECT_TRUE(folder.entries().empty());
  write_clip(folder / "odd.gif", video_settings(33, 31), 2);
  EXPECT_EQ(read_video(folder / "odd.gif")[0].width, 33);
}

TEST(VideoReader, HostileFilesAreRefused) {
  const TempFolder folder;
  write_clip(folder / "a.mp4", video_settings(64, 64), 20);
  const std::string good = read_bytes(folder / "a.mp4");
  const auto write = [&](const std::string& name, const std::string& bytes) {
    std::ofstream(folder / name, std::ios::binary) << bytes;
    return folder / name;
  };
  const auto refused = [&](const std::string& path) {
    return error_kind([&] { read_video(path); }) == ErrorKind::kMedia &&
           error_kind([&] { probe_media(path); }) == ErrorKind::kMedia;
  };
  EXPECT_TRUE(refused(folder / "none.mp4"));
  EXPECT_TRUE(refused(folder.path()));
  EXPECT_TRUE(refused(write("empty.mp4", "")));
  EXPECT_TRUE(refused(write("cut.mp4", good.substr(0, 300))));
  // These formats refer to other files or hosts.
  EXPECT_TRUE(refused(write("list.m3u8", "#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n")));
  EXPECT_TRUE(refused(write("list.ffconcat", "ffconcat version 1.0\nfile 'a.mp4'\n")));
  EXPECT_TRUE(refused("concat:" + (folder / "a.mp4")));
  EXPECT_TRUE(refused("http://localhost/a.mp4"));
}

TEST(MediaProbe, ReadsPictures) {
  const TempFolder folder;
  write_png(folder / "a.png", test_picture(40, 30, 0), {{"weft", "{}"}}, Overwrite::kRefuse);
  const MediaInfo info = probe_media(folder / "a.png");
  EXPECT_EQ(info.container, "png");
  EXPECT_EQ(info.codec, "png");
  EXPECT_EQ(info.pixel_format, "rgb8");
  EXPECT_EQ(info.width, 40);
  EXPECT_EQ(info.height, 30);
  EXPECT_EQ(info.frames, 1);
  EXPECT_EQ(info.metadata.at("weft"), "{}");
}

}  // namespace
}  // namespace weft::test
