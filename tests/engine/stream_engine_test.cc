// Tests streams from a model directory: pictures in order and the same bits under every split, and
// interruptions.
#include "engine/session/stream_engine.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "io/json.h"
#include "tests/engine/small_job.h"
#include "tests/engine/stream_job.h"
#include "tests/engine/stream_pictures.h"
#include "tests/io/io_testing.h"
#include "tests/io/media_testing.h"
#include "tests/parallel/stream_byte_formulas.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

std::shared_ptr<const OpenModel> model() {
  static const auto open = std::make_shared<const OpenModel>(kModel);
  return open;
}

StreamSettings engine_settings() {
  return {.width = 32,
          .height = 32,
          .steps = 2,
          .solver = "euler",
          .segment_frames = 2,
          .window_frames = 4,
          .seed = 5,
          .threads = 1};
}

StreamSignal segments_of(int64_t number, int64_t segments) {
  return {.frames = number == 0 ? 1 : 2, .last = number + 1 == segments};
}

// Runs 4 segments, the first one of one latent frame.
std::vector<StreamPictures> run_stream_engine(const StreamSettings& settings) {
  std::vector<StreamPictures> out;
  StreamEngine(model(), settings)
      .run(
          "a red ball", [](int64_t number) { return segments_of(number, 4); },
          [&](StreamPictures&& pictures) { out.push_back(std::move(pictures)); });
  return out;
}

TEST(StreamEngine, PicturesAreTheSameUnderEverySplit) {
  const std::vector<StreamPictures> wanted = run_stream_engine(engine_settings());
  ASSERT_EQ(wanted.size(), 4u);
  int64_t index = 0;
  for (int segment = 0; segment < 4; ++segment) {
    EXPECT_EQ(wanted[segment].segment.number, segment);
    EXPECT_EQ(wanted[segment].first, index);
    EXPECT_EQ(std::ssize(wanted[segment].pictures), segment == 0 ? 1 : 8);
    EXPECT_FALSE(wanted[segment].muted);
    index += std::ssize(wanted[segment].pictures);
  }
  EXPECT_NE(wanted[1].pictures[0].rgb, wanted[2].pictures[0].rgb);
  for (const auto& [steps, layers, ulysses, apart] : {std::tuple{1, 1, 1, true},
                                                      {2, 1, 1, false},
                                                      {2, 1, 1, true},
                                                      {1, 2, 1, true},
                                                      {1, 2, 1, false},
                                                      {1, 1, 2, false},
                                                      {1, 1, 2, true},
                                                      {2, 1, 2, false}}) {
    StreamSettings split = engine_settings();
    split.layout = StreamRun::split(steps, layers, ulysses);
    split.decodes_apart = apart;
    expect_same_pictures(run_stream_engine(split), wanted,
                         to_string(split.layout) + (apart ? " and a decoder" : ""));
  }
}

TEST(StreamEngine, AnInterruptionMutesTheBlocksThatHaveBegun) {
  StreamSettings split = engine_settings();
  split.layout = StreamRun::split(2);
  split.decodes_apart = true;
  StreamEngine engine(model(), split);
  int muted = 0;
  engine.run(
      "a red ball",
      [&](int64_t number) {
        if (number == 3) engine.interrupt();
        return segments_of(number, 6);
      },
      [&](StreamPictures&& pictures) {
        EXPECT_EQ(pictures.segment.epoch, pictures.segment.number < 3 ? 0u : 1u);
        EXPECT_TRUE(!pictures.muted || pictures.segment.number < 3);
        muted += pictures.muted;
      });
  EXPECT_LE(muted, engine.plan().under_way());
}

void full_at_the_second_block(StreamPictures&& pictures) {
  if (pictures.segment.number == 2) throw Error(ErrorKind::kOutput, "the disk is full");
}

TEST(StreamEngine, WhatEndsACallbackEndsTheStream) {
  for (const bool apart : {false, true}) {
    StreamSettings split = engine_settings();
    split.layout = StreamRun::split(2);
    split.decodes_apart = apart;
    StreamEngine engine(model(), split);
    const auto next = [](int64_t number) { return segments_of(number, -1); };
    expect_error(ErrorKind::kOutput, "the disk is full",
                 [&] { engine.run("a", next, full_at_the_second_block); });
    // The next stream begins anew.
    int64_t blocks = 0;
    engine.run(
        "a", [](int64_t number) { return segments_of(number, 3); },
        [&](StreamPictures&&) { ++blocks; });
    EXPECT_EQ(blocks, 3);
  }
}

// Every rank of a world, as processes have them: the first one draws with engines of several
// splits, and the others follow it. Late messages change nothing.
TEST(StreamEngine, RanksOfAWorldFollowTheFirst) {
  const auto draw = [](StreamEngine& engine, const std::string& caption) {
    std::vector<StreamPictures> out;
    engine.run(
        caption, [](int64_t number) { return segments_of(number, 3); },
        [&](StreamPictures&& pictures) { out.push_back(std::move(pictures)); });
    return out;
  };
  StreamEngine alone(model(), engine_settings());
  const std::vector<StreamPictures> red = draw(alone, "a red ball"), blue = draw(alone, "blue");
  ASSERT_NE(red[1].pictures[0].rgb, blue[1].pictures[0].rgb);
  for (const LocalOptions& local :
       {LocalOptions{}, {.rendezvous = true}, {.delay_seed = 1}, {.delay_seed = 2}})
    run_ranks(
        3,
        [&](Communicator& world) {
          if (world.rank() > 0) {
            EXPECT_FALSE(follow_streams(model(), engine_settings(), world));
            const int64_t frames =
                world.counters().sent[static_cast<size_t>(Payload::kFrames)].bytes;
            // It decodes in two of the splits, or in one; each has three runs of 17 pictures.
            EXPECT_EQ(frames, 3 * (world.rank() == 1 ? 2 : 1) * picture_sent_bytes(17, 32, 32));
            return;
          }
          for (const auto& [steps, layers, ulysses, apart] : {std::tuple{2, 1, 1, false},
                                                              {1, 1, 1, false},
                                                              {1, 1, 2, false},
                                                              {1, 2, 1, false},
                                                              {2, 1, 1, true}}) {
            StreamSettings split = engine_settings();
            split.layout = StreamRun::split(steps, layers, ulysses);
            split.decodes_apart = apart;
            StreamEngine engine(model(), split, &world);
            const std::string text = to_string(split.layout) + (apart ? " and a decoder" : "");
            for (const auto& [caption, wanted] :
                 {std::pair{"a red ball", &red}, {"a red ball", &red}, {"blue", &blue}})
              expect_same_pictures(draw(engine, caption), *wanted, text + ", " + caption);
          }
          dismiss_streams(world, nullptr);
        },
        local);
}

// The other ranks learn why the first one's work has ended, between two runs and in one.
TEST(StreamEngine, RanksOfAWorldEndWithTheFirst) {
  run_ranks(2, [](Communicator& world) {
    const Error told(ErrorKind::kMedia, "the sound has no end");
    if (world.rank() == 0) return dismiss_streams(world, &told);
    const std::optional<Error> heard = follow_streams(model(), engine_settings(), world);
    ASSERT_TRUE(heard);
    EXPECT_EQ(heard->kind(), told.kind());
    EXPECT_STREQ(heard->what(), told.what());
  });
  expect_error(ErrorKind::kComm, "rank 0 failed: the disk is full", [] {
    run_ranks(2, [](Communicator& world) {
      if (world.rank() > 0) {
        follow_streams(model(), engine_settings(), world);
        FAIL() << "the run ended";
      }
      StreamSettings split = engine_settings();
      split.layout = StreamRun::split(2);
      StreamEngine engine(model(), split, &world);
      const auto next = [](int64_t number) { return segments_of(number, -1); };
      for (int run = 0; run < 2; ++run)
        expect_error(ErrorKind::kOutput, "the disk is full",
                     [&] { engine.run("a", next, full_at_the_second_block); });
      expect_error(ErrorKind::kOutput, "the disk is full", [&] { engine.check_ranks(); });
    });
  });
}

TEST(StreamEngine, IllegalSettingsAreNamed) {
  const auto error_of = [](const std::function<void(StreamSettings&)>& change) -> std::string {
    StreamSettings changed = engine_settings();
    change(changed);
    return test::error_of([&] { StreamEngine(model(), changed); });
  };
  EXPECT_EQ(error_of([](StreamSettings&) {}), "");
  EXPECT_TRUE(contains(error_of([](StreamSettings& s) { s.width = 40; }), "--width is 40"));
  EXPECT_TRUE(contains(error_of([](StreamSettings& s) { s.window_frames = 1; }), "window is 1"));
  EXPECT_TRUE(
      contains(error_of([](StreamSettings& s) { s.layout = StreamRun::split(3); }), "step=3"));
}

// A copy of the pocket avatar that says so in its weft.json.
TEST(StreamEngine, AModelWithACleanPassIsRefused) {
  const TempFolder folder;
  for (const auto& entry : std::filesystem::directory_iterator("models/pocket_avatar"))
    if (entry.path().filename() != "weft.json")
      std::filesystem::create_symlink(std::filesystem::absolute(entry.path()),
                                      folder / entry.path().filename().string());
  nlohmann::json json = read_json_file("models/pocket_avatar/weft.json");
  for (const bool clean : {false, true}) {
    json["stream"]["clean_pass"] = clean;
    std::ofstream(folder / "weft.json") << json;
    const auto opened = std::make_shared<const OpenModel>(folder.path());
    StreamSettings small = engine_settings();
    small.width = small.height = 96;
    if (clean)
      expect_error(ErrorKind::kModel, "stream.clean_pass", [&] { StreamEngine(opened, small); });
    else
      EXPECT_NO_THROW(StreamEngine(opened, small));
  }
}

}  // namespace
}  // namespace weft::test
