// A stream that follows a signal: the same bits under every split, in the engine and in a session.
#include "engine/session/stream_measure.h"
#include "tests/apps/face/avatar_testing.h"
#include "tests/apps/face/session_testing.h"
#include "tests/engine/stream_pictures.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

constexpr int kAvatarBlocks = 6;  // two more than a window

struct SplitOfAvatar {
  int steps, layers;
  bool apart;
  int ulysses = 1;
};
constexpr SplitOfAvatar kAvatarSplits[] = {{1, 1, true}, {2, 1, false}, {3, 1, true}, {4, 1, false},
                                           {4, 1, true}, {1, 2, false}, {1, 2, true}, {2, 2, false},
                                           {4, 2, true}, {1, 3, true}};

std::string split_name(const SplitOfAvatar& split) {
  return "step=" + std::to_string(split.steps) + " layers=" + std::to_string(split.layers) +
         " ulysses=" + std::to_string(split.ulysses) + (split.apart ? " and a decoder" : "");
}

StreamSettings small_avatar(const SplitOfAvatar& split) {
  StreamSettings settings = avatar_settings(5, split.steps, split.layers, split.apart);
  settings.layout[Axis::kUlysses] = split.ulysses;
  settings.width = 48;
  settings.height = 32;
  return settings;
}

// The rows of a segment, as loud as `volume` says.
StreamSignal signal_of(int64_t number, int64_t frames, float volume) {
  StreamSignal signal{.frames = frames, .rows = {}, .last = number + 1 == kAvatarBlocks};
  for (int64_t i = 0; i < 4 * frames * Session::kSignalColumns; ++i) {
    const int64_t column = i % Session::kSignalColumns, row = i / Session::kSignalColumns;
    const bool loud = (row + number) % 3 != 0;
    signal.rows.push_back(column == SoundBands::kBands + 2 ? 1
                          : column >= SoundBands::kBands   ? 0
                          : loud                           ? volume + 0.02f * float(column)
                                                           : SoundBands::silence());
  }
  return signal;
}

std::vector<StreamPictures> run_split(const SplitOfAvatar& split, float volume, float last_volume) {
  std::vector<StreamPictures> out;
  StreamEngine(avatar(), small_avatar(split))
      .run(
          "a calm face with dark skin and gray hair on a blue background",
          [&](int64_t number) {
            // The first segment and the third are shorter.
            return signal_of(number,
                             number == 0   ? 1
                             : number == 2 ? 2
                                           : 3,
                             number == kAvatarBlocks - 1 ? last_volume : volume);
          },
          [&](StreamPictures&& pictures) { out.push_back(std::move(pictures)); });
  return out;
}

TEST(AvatarSplit, PicturesAreTheSameUnderEverySplit) {
  const std::vector<StreamPictures> wanted = run_split({1, 1, false}, 0.5f, 0.5f);
  ASSERT_EQ(wanted.size(), size_t(kAvatarBlocks));
  for (const SplitOfAvatar& split : kAvatarSplits)
    expect_same_pictures(run_split(split, 0.5f, 0.5f), wanted, split_name(split));
}

// A product of few rows may add in another order than one of more rows.
TEST(AvatarSplit, TokensAndHeadsGiveTheSamePicturesToALevel) {
  const std::vector<StreamPictures> wanted = run_split({1, 1, false}, 0.5f, 0.5f);
  for (const SplitOfAvatar& split : {SplitOfAvatar{1, 1, false, 2}, SplitOfAvatar{2, 1, true, 2},
                                     SplitOfAvatar{1, 1, false, 3}, SplitOfAvatar{1, 1, true, 4}}) {
    const std::vector<StreamPictures> got = run_split(split, 0.5f, 0.5f);
    ASSERT_EQ(got.size(), wanted.size()) << split_name(split);
    int64_t values = 0, differ = 0;
    for (size_t segment = 0; segment < got.size(); ++segment) {
      EXPECT_EQ(got[segment].first, wanted[segment].first);
      ASSERT_EQ(got[segment].pictures.size(), wanted[segment].pictures.size());
      for (size_t i = 0; i < got[segment].pictures.size(); ++i) {
        const auto &a = got[segment].pictures[i].rgb, &b = wanted[segment].pictures[i].rgb;
        for (size_t k = 0; k < a.size(); ++k, ++values) {
          EXPECT_LE(std::abs(a[k] - b[k]), 1) << split_name(split) << ", block " << segment;
          differ += a[k] != b[k];
        }
      }
    }
    EXPECT_LE(double(differ), 0.002 * double(values)) << split_name(split);
  }
}

// A segment's rows change its own pictures and those of later segments, and no others.
TEST(AvatarSplit, ASignalChangesItsBlockAndLaterOnes) {
  for (const SplitOfAvatar& split :
       {SplitOfAvatar{1, 1, false}, SplitOfAvatar{4, 1, true}, SplitOfAvatar{2, 2, true}}) {
    const std::vector<StreamPictures> one = run_split(split, 0.5f, 0.5f),
                                      other = run_split(split, 0.5f, -1);
    ASSERT_EQ(one.size(), other.size());
    for (size_t segment = 0; segment < one.size(); ++segment)
      for (size_t i = 0; i < one[segment].pictures.size(); ++i)
        EXPECT_EQ(one[segment].pictures[i].rgb == other[segment].pictures[i].rgb,
                  segment + 1 < kAvatarBlocks)
            << split_name(split) << ", block " << segment << ", picture " << i;
  }
}

// A session whose sound comes late and in pieces, so that a layer ring gets hollow segments.
std::vector<SessionSlot> show(const SplitOfAvatar& split, int in_engine) {
  StreamEngine engine(avatar(), small_avatar(split));
  Session session(avatar_session(in_engine));
  return play(engine, "a happy face with tan skin and red hair on a navy background", session, [&] {
    for (const uint32_t seed : {1u, 2u}) {
      const std::vector<float> sound = speech(20 * kSlotSamples, seed);
      for (size_t at = 0; at < sound.size(); at += 1500)
        session.push_sound(std::span(sound).subspan(at, std::min<size_t>(1500, sound.size() - at)),
                           0);
      session.end_turn();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      session.rest(SessionState::kListening, 5);
    }
    session.close();
  });
}

TEST(AvatarSplit, ASessionShowsTheSamePicturesUnderEverySplit) {
  const std::vector<SessionSlot> wanted = show({1, 1, false}, 1);
  ASSERT_EQ(wanted.size(), size_t(9 + 12 + 12 + 12 + 12 + 12));
  for (const SplitOfAvatar& split :
       {SplitOfAvatar{2, 1, true}, SplitOfAvatar{4, 1, false}, SplitOfAvatar{1, 2, false},
        SplitOfAvatar{1, 2, true}, SplitOfAvatar{2, 2, true}})
    for (const int in_engine : {1, 6}) {
      const std::vector<SessionSlot> got = show(split, in_engine);
      expect_continuous(got);
      ASSERT_EQ(got.size(), wanted.size());
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i].picture.rgb, wanted[i].picture.rgb)
            << split_name(split) << ", slot " << i << ", " << in_engine << " in the engine";
        EXPECT_EQ(got[i].sound, wanted[i].sound);
        EXPECT_EQ(got[i].state, wanted[i].state);
      }
    }
}

// A stream without rows, or with too few, is refused.
TEST(AvatarSplit, RowsOfAnotherNumberAreNamed) {
  StreamEngine engine(avatar(), small_avatar({1, 1, false}));
  EXPECT_EQ(engine.signal_columns(), 4 * Session::kSignalColumns);
  const auto short_signal = [](int64_t) {
    return StreamSignal{.frames = 3, .rows = std::vector<float>(139)};
  };
  const std::string what = test::thrown_error(
      [&] { engine.run("a", short_signal, [](StreamPictures&&) { FAIL(); }); }, ErrorKind::kUsage);
  EXPECT_TRUE(test::contains(what, "139; legal"));
  EXPECT_TRUE(test::contains(what, "3 rows of " + std::to_string(engine.signal_columns())));
}

// A forecast from the times of one rank is that of the simulated split.
TEST(AvatarSplit, ForecastsAreThoseOfTheSimulation) {
  const std::string caption = "a calm face";
  Machine machine{.device = {}, .link = {.latency_s = 1e-5}};
  machine.device.flop_per_s.fill(1e11);
  machine.device.bytes_per_s.fill(2e10);
  const auto simulated = [&](const SplitOfAvatar& split) {
    StreamEngine engine(avatar(), small_avatar(split));
    const size_t before = tensor_bytes_live();
    StreamMeasurement out = simulate_stream(engine, caption, 25, machine);
    EXPECT_EQ(tensor_bytes_live(), before);
    return std::pair(out, engine.plan());
  };
  const auto [one, plan] = simulated({1, 1, false});
  EXPECT_GT(one.times.forward_s, 0);
  EXPECT_EQ(one.times.pictures, 12);
  for (const SplitOfAvatar& split : kAvatarSplits) {
    const auto [whole, config] = simulated(split);
    const StreamForecast brief = stream_forecast(config, one.times);
    EXPECT_NEAR(brief.period_s / whole.stream.period_s, 1, 0.02) << split_name(split);
    // The first segment sees no other, so its forwards are shorter than the measured ones.
    EXPECT_GE(brief.first_frame_s, 0.98 * whole.stream.first_frame_s) << split_name(split);
    EXPECT_LE(brief.first_frame_s, 1.15 * whole.stream.first_frame_s) << split_name(split);
  }
}

}  // namespace
}  // namespace weft::test
