// The pocket avatar from a sound to its pictures: a made-up voice through a session and the stream
// engine, and the faces read back.
#include <array>
#include <cmath>

#include "tests/apps/face/avatar_testing.h"
#include "tests/bench/pocket/face_reader.h"
#include "tests/support/voice.h"

namespace weft::pocket {
namespace {

constexpr int kPicture = SoundBands::kHop;  // samples
constexpr int kBlock = 12;                  // pictures

// A session's slots, read.
struct Watched {
  std::vector<FaceReading> faces;
  std::vector<double> opening, loudness;
  std::vector<bool> speaks;
  std::vector<SessionState> states;
  LipSync sync() const { return lip_sync(opening, loudness, speaks); }

  double mean_opening(SessionState state) const {
    double sum = 0, n = 0;
    // A mouth that was open shuts within the first pictures of a state.
    for (size_t k = 3; k < states.size(); ++k)
      if (states[k] == state && states[k - 3] == state) {
        sum += opening[k];
        n += 1;
      }
    return sum / n;
  }
};

Watched watch(const FaceLook& look, uint64_t seed, const std::function<void(Session&)>& speak) {
  StreamEngine engine(test::avatar(), test::avatar_settings(seed));
  Session session(test::avatar_session(engine.plan().under_way()));
  Watched out;
  std::vector<float> sound;
  for (const SessionSlot& slot :
       test::play(engine, caption_of(look), session, [&] { speak(session); })) {
    EXPECT_EQ(slot.source, std::ssize(out.faces));
    out.faces.push_back(read_face(slot.picture));
    out.opening.push_back(out.faces.back().opening);
    out.states.push_back(slot.state);
    out.speaks.push_back(slot.state == SessionState::kSpeaking);
    sound.insert(sound.end(), slot.sound.begin(), slot.sound.end());
  }
  out.loudness = loudness_of(sound);
  return out;
}

void expect_followed(const FaceLook& look, int pictures, uint32_t seed) {
  const Watched seen = watch(look, seed, [&](Session& session) {
    session.push_sound(made_up_voice(pictures * kPicture, seed), 0);
    session.end_turn();
    session.close();
  });
  ASSERT_GE(std::ssize(seen.faces), pictures);
  const LipSync sync = seen.sync();
  EXPECT_GE(sync.correlation, 0.7) << caption_of(look);
  EXPECT_LE(std::abs(sync.lag), 1) << caption_of(look);
  EXPECT_GT(seen.mean_opening(SessionState::kSpeaking), 0.1) << caption_of(look);
  FaceLook read = look_of(seen.faces);
  read.mood = look.mood;  // the model draws it, but not always
  EXPECT_EQ(caption_of(read), caption_of(look));
}

TEST(Avatar, TheMouthFollowsAVoice) {
  expect_followed({Skin::kTan, Hair::kBlond, Backdrop::kGreen, Mood::kHappy}, 200, 11);
}
TEST(Avatar, TheMouthOfAnotherLookFollowsAnotherVoice) {
  expect_followed({Skin::kBrown, Hair::kBlack, Backdrop::kWhite, Mood::kCalm}, 100, 21);
}

// One face in all its states, twice.
TEST(Avatar, TheMouthIsShutWhereTheFaceDoesNotSpeak) {
  const FaceLook look{Skin::kPale, Hair::kRed, Backdrop::kNavy, Mood::kCalm};
  const Watched seen = watch(look, 13, [](Session& session) {
    for (const uint32_t seed : {14u, 15u}) {
      session.push_sound(made_up_voice(3 * kBlock * kPicture, seed), 0);
      session.end_turn();
      session.rest(SessionState::kListening, 2 * kBlock);
      session.rest(SessionState::kIdle, 2 * kBlock);
    }
    session.close();
  });
  EXPECT_GT(seen.mean_opening(SessionState::kSpeaking), 0.15);
  EXPECT_LT(seen.mean_opening(SessionState::kListening), 0.05);
  EXPECT_LT(seen.mean_opening(SessionState::kIdle), 0.05);
}

}  // namespace
}  // namespace weft::pocket
