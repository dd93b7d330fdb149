// The pocket avatar, driven by its sound, draws what its recipe's sampler draws. The fixture in
// avatar/ is written by models/pocket_avatar/recipe/golden.py: six segments, two more than a
// window.

#include "engine/sampling/noise.h"
#include "io/media/image.h"
#include "io/weights/tensor_file.h"
#include "tests/apps/face/avatar_testing.h"

namespace weft::test {
namespace {

constexpr uint64_t kSeed = 0x1234567890;
constexpr auto kCaption = "a happy face with tan skin and red hair on a navy background";
constexpr int kAcross = 6;  // pictures in a row of pictures.png

struct Fixture {
  TensorFile file = TensorFile::open("tests/engine/avatar/stream.safetensors");
  TensorView rows = file.view("rows"), noise = file.view("noise");
  std::vector<float> sound;
  Fixture() {
    const TensorView levels = file.view("levels");
    for (int64_t i = 0; i < levels.count(); ++i)
      sound.push_back((float(levels.as<uint8_t>()[i]) - 128) / 128);
  }
  std::vector<float> rows_of(int64_t first, int64_t frames) const {
    const float* from = rows.as<float>() + first * rows[1];
    return {from, from + frames * rows[1]};
  }
};

// Plays the sound of the fixture to a session, in the states of its segments.
void speak_golden(Session& session, const std::vector<float>& sound) {
  constexpr size_t kSegment = 12 * SoundBands::kHop, kFirst = 9 * SoundBands::kHop;
  const std::span<const float> all = sound;
  const auto say = [&](size_t from, size_t samples) {
    session.push_sound(all.subspan(from, samples), 0);
    session.end_turn();
  };
  say(0, kFirst + kSegment);
  session.rest(SessionState::kListening, 12);
  say(kFirst + 2 * kSegment, kSegment);
  session.rest(SessionState::kIdle, 12);
  say(kFirst + 4 * kSegment, kSegment);
  session.close();
}

// The differences of pictures from the fixture's, at worst.
struct Apart {
  int levels = 0;
  double share = 0;  // of the values of a picture that are not equal
};

Apart apart(const Fixture& fixture, const std::vector<Frame>& got) {
  const Frame sheet = read_png("tests/engine/avatar/pictures.png");
  const TensorView shown = fixture.file.view("pictures");
  Apart out;
  for (int64_t i = 0; i < shown.count(); ++i) {
    const Frame& picture = got.at(size_t(shown.as<int32_t>()[i]));
    const int row = 3 * picture.width;
    int differ = 0;
    for (int y = 0; y < picture.height; ++y)
      for (int k = 0; k < row; ++k) {
        const int x0 = int(i % kAcross) * picture.width, y0 = int(i / kAcross) * picture.height;
        const int levels = std::abs(picture.at(0, y)[k] - sheet.at(x0, y0 + y)[k]);
        out.levels = std::max(out.levels, levels);
        differ += levels > 0;
      }
    out.share = std::max(out.share, double(differ) / (row * picture.height));
  }
  return out;
}

// Expects the fixture's pictures up to roundings: a level may turn over where it lies between two.
void expect_pictures(const Fixture& fixture, const std::vector<Frame>& got) {
  ASSERT_EQ(std::ssize(got), 4 * fixture.rows[0] - 3);
  const Apart found = apart(fixture, got);
  EXPECT_LE(found.levels, 1);
  EXPECT_LE(found.share, 0.002);
}

// The pictures of the fixture's rows, all of which are taken from `shift` rows later.
std::vector<Frame> draw_avatar(const Fixture& fixture, const StreamSettings& settings,
                               int shift = 0) {
  std::vector<Frame> got;
  const int64_t frames = fixture.rows[0];
  const auto next = [&](int64_t number) {
    std::vector<float> rows = fixture.rows_of(0, frames);
    std::ranges::rotate(rows, rows.begin() + shift * Session::kSignalColumns);
    const auto first = rows.begin() + 3 * number * fixture.rows[1];
    return StreamSignal{.frames = 3,
                        .rows = {first, first + 3 * fixture.rows[1]},
                        .last = 3 * (number + 1) == frames};
  };
  StreamEngine(avatar(), settings).run(kCaption, next, [&](StreamPictures&& segment) {
    EXPECT_EQ(segment.first, std::ssize(got));
    for (Frame& picture : segment.pictures) got.push_back(std::move(picture));
  });
  return got;
}

TEST(AvatarGolden, TheNoiseIsTheRecipes) {
  const Fixture fixture;
  const int64_t frames[] = {0, fixture.rows[0] - 1};
  for (int64_t i = 0; i < 2; ++i) {
    Tensor got(DType::kF32, {16, 1, 12, 12});
    NoiseField(Rng::kPortable, kSeed, {16, 100, 12, 12}).fill(got, frames[i]);
    for (int64_t c = 0; c < 16; ++c)
      for (int64_t k = 0; k < 144; ++k)
        ASSERT_NEAR(got.as<float>()[c * 144 + k], fixture.noise.as<float>()[(c * 2 + i) * 144 + k],
                    1e-5)
            << "frame " << frames[i] << " channel " << c << " element " << k;
  }
}

TEST(AvatarGolden, TheSessionMakesTheRecipesRows) {
  const Fixture fixture;
  Session session(avatar_session(1, kSeed));
  std::thread speaks([&] { speak_golden(session, fixture.sound); });
  int64_t frames = 0;
  while (const std::optional<SignalSegment> segment = session.next_segment()) {
    EXPECT_EQ(segment->first_frame, frames);
    EXPECT_EQ(segment->frames, 3);
    const std::vector<float> wanted = fixture.rows_of(frames, segment->frames);
    EXPECT_EQ(segment->rows.size(), wanted.size());
    for (size_t i = 0; i < std::min(wanted.size(), segment->rows.size()); ++i)
      EXPECT_NEAR(segment->rows[i], wanted[i], 1e-5)
          << "block " << segment->number << " value " << i;
    frames += segment->frames;
    session.deliver(segment->number, std::vector<Frame>(segment->number == 0 ? 9 : 12));
    while (session.try_next()) {
    }
  }
  speaks.join();
  EXPECT_EQ(frames, fixture.rows[0]);
}

TEST(AvatarGolden, TheEngineDrawsWhatTheRecipeDraws) {
  const Fixture fixture;
  expect_pictures(fixture, draw_avatar(fixture, avatar_settings(kSeed)));
}

// The comparison sees a shorter window, another number of steps, and rows that come one picture
// early.
TEST(AvatarGolden, OtherSettingsDrawOtherPictures) {
  const Fixture fixture;
  StreamSettings shorter = avatar_settings(kSeed), more = avatar_settings(kSeed);
  shorter.window_frames = 9;
  more.steps = 5;
  EXPECT_GT(apart(fixture, draw_avatar(fixture, shorter)).levels, 4);
  EXPECT_GT(apart(fixture, draw_avatar(fixture, more)).levels, 4);
  EXPECT_GT(apart(fixture, draw_avatar(fixture, avatar_settings(kSeed), 1)).levels, 4);
}

TEST(AvatarGolden, ASessionShowsWhatTheRecipeDraws) {
  const Fixture fixture;
  StreamEngine engine(avatar(), avatar_settings(kSeed));
  Session session(avatar_session(engine.plan().under_way(), kSeed));
  const std::vector<SessionSlot> slots =
      play(engine, kCaption, session, [&] { speak_golden(session, fixture.sound); });
  std::vector<Frame> got;
  std::vector<float> sound;
  for (const SessionSlot& slot : slots) {
    got.push_back(slot.picture);
    sound.insert(sound.end(), slot.sound.begin(), slot.sound.end());
  }
  EXPECT_EQ(sound, fixture.sound);
  expect_pictures(fixture, got);
}

}  // namespace
}  // namespace weft::test
