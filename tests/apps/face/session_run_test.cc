// A session on a real engine: every picture once, in order, under every split, though the session
// lets only one segment into the engine at a time.
#include "apps/live/face/session_run.h"

#include <numeric>
#include <thread>

#include "apps/live/face/turn_runner.h"
#include "tests/apps/face/session_testing.h"
#include "tests/engine/small_job.h"
#include "tests/engine/stream_job.h"

namespace weft::test {
namespace {

struct Played {
  std::vector<SessionSlot> slots;
  SessionCounts counts;
};

Played play_session(const StreamSettings& settings, int in_engine, size_t pictures) {
  StreamEngine engine(std::make_shared<const OpenModel>(kModel), settings);
  SessionConfig config;
  config.segment_frames = 2;
  config.first_segment = config.first_pictures = 1;
  config.in_engine = in_engine;
  Session session(config);
  std::thread runs([&] { run_session(engine, "a red ball", session); });
  std::thread speaks([&] {
    if (pictures > 0) session.push_sound(speech(pictures * kSlotSamples, 3), 0);
    if (pictures > 0) session.end_turn();
    session.close();
  });
  Played out;
  std::exception_ptr error;
  try {
    while (std::optional<SessionSlot> slot = session.next()) out.slots.push_back(std::move(*slot));
  } catch (...) {
    error = std::current_exception();
  }
  runs.join();
  speaks.join();
  if (error) std::rethrow_exception(error);
  out.counts = session.counts();
  return out;
}

StreamSettings run_settings(int steps, int layers, bool apart) {
  return {.width = 32,
          .height = 32,
          .steps = 2,
          .solver = "euler",
          .segment_frames = 2,
          .window_frames = 4,
          .layout = StreamRun::split(steps, layers),
          .decodes_apart = apart,
          .threads = 1};
}

TEST(SessionRun, EveryPictureOnceUnderEverySplit) {
  const Played wanted = play_session(run_settings(1, 1, false), 1, 30);
  ASSERT_GE(wanted.slots.size(), 30u);
  for (const auto& [steps, layers, apart] : {std::tuple{1, 1, false},
                                             {1, 1, true},
                                             {2, 1, false},
                                             {2, 1, true},
                                             {1, 2, false},
                                             {1, 2, true},
                                             {2, 2, true}})
    for (const int in_engine : {1, 6}) {
      const Played got = play_session(run_settings(steps, layers, apart), in_engine, 30);
      expect_continuous(got.slots);
      EXPECT_EQ(got.counts.missing, 0);
      EXPECT_EQ(got.counts.doubled, 0);
      EXPECT_LE(got.counts.max_in_engine, in_engine);
      ASSERT_EQ(got.slots.size(), wanted.slots.size());
      for (size_t i = 0; i < got.slots.size(); ++i)
        EXPECT_EQ(got.slots[i].picture.rgb, wanted.slots[i].picture.rgb)
            << steps << " " << layers << " " << apart << " slot " << i;
    }
}

TEST(SessionRun, ASessionMayEndBeforeItBegins) {
  for (const int layers : {1, 2})
    EXPECT_TRUE(play_session(run_settings(1, layers, true), 2, 0).slots.empty());
}

TEST(SessionRun, AnErrorOfTheEngineIsTheSessions) {
  StreamSettings other = run_settings(2, 1, true);
  other.segment_frames = 1;
  EXPECT_THROW(play_session(other, 2, 30), Error);
}

// Sessions that share an engine of a model that follows a sound.

StreamEngine avatar_engine(int steps, int layers) {
  StreamSettings small = run_settings(steps, layers, false);
  small.steps = 2;
  small.segment_frames = 3;
  small.window_frames = 6;
  return {std::make_shared<const OpenModel>("models/pocket_avatar"), small};
}

// Two speeches of a session, which differ from those of the others.
void speak_turns(Session& session, int number) {
  for (int turn = 0; turn < 2; ++turn) {
    const auto seed = static_cast<uint32_t>(10 * number + turn);
    session.push_sound(speech(kSlotSamples * size_t(7 + 9 * turn + number), seed), 0);
    session.end_turn();
  }
  session.close();
}

// The slots of so many sessions on one engine.
std::vector<std::vector<SessionSlot>> sessions_together(StreamEngine& engine,
                                                        const std::vector<int>& numbers) {
  const std::string captions[] = {"a calm face", "a happy face", "a stern face"};
  TurnRunner runner(engine);
  const int64_t turns = runner.token().turns();
  std::vector<std::shared_ptr<Session>> sessions;
  for (size_t i = 0; i < numbers.size(); ++i) {
    SessionConfig config;
    config.first_segment = 1 + numbers[i] % 3;
    config.first_pictures = 1;
    config.in_engine = engine.plan().under_way();
    config.turns = &runner.token();
    config.id = runner.new_id();
    sessions.push_back(std::make_shared<Session>(config));
    runner.join(config.id, sessions.back(), captions[numbers[i] % 3]);
  }
  std::vector<std::vector<SessionSlot>> slots(numbers.size());
  std::vector<std::jthread> threads;
  for (size_t i = 0; i < numbers.size(); ++i) {
    threads.emplace_back([&, i] { speak_turns(*sessions[i], numbers[i]); });
    threads.emplace_back([&, i] {
      while (std::optional<SessionSlot> slot = sessions[i]->next())
        slots[i].push_back(std::move(*slot));
    });
  }
  for (std::jthread& thread : threads) thread.join();
  EXPECT_EQ(runner.token().turns() - turns, std::ssize(numbers) * 2);
  for (const auto& session : sessions) EXPECT_EQ(session->counts().missing, 0);
  for (const auto& session : sessions) EXPECT_EQ(session->counts().doubled, 0);
  return slots;
}

TEST(SessionRun, SessionsThatTakeTurnsEqualEachAlone) {
  for (const auto& [steps, layers] : {std::pair{1, 1}, {2, 1}, {1, 2}}) {
    StreamEngine engine = avatar_engine(steps, layers);
    std::vector<std::vector<SessionSlot>> alone;
    for (int number = 0; number < 8; ++number) {
      alone.push_back(sessions_together(engine, {number}).front());
      expect_continuous(alone.back());
    }
    for (const int count : {2, 8}) {
      std::vector<int> numbers(count);
      std::iota(numbers.begin(), numbers.end(), 0);
      const auto slots = sessions_together(engine, numbers);
      for (int number = 0; number < count; ++number) {
        ASSERT_EQ(slots[number].size(), alone[number].size()) << number;
        for (size_t k = 0; k < slots[number].size(); ++k) {
          ASSERT_EQ(slots[number][k].picture.rgb, alone[number][k].picture.rgb)
              << steps << " " << layers << " session " << number << " slot " << k;
          ASSERT_EQ(slots[number][k].sound, alone[number][k].sound);
        }
      }
    }
    EXPECT_NE(alone[0].back().picture.rgb, alone[1].back().picture.rgb);
  }
}

TEST(TurnRunner, LoopsRunForthAndBack) {
  StreamEngine engine = avatar_engine(1, 1);
  TurnRunner runner(engine);
  SessionConfig config;
  config.first_pictures = 1;
  config.in_engine = engine.plan().under_way();
  const auto loops = draw_loops(runner, config, "a calm face", 20);
  for (const std::vector<Frame>* loop : {&loops->idle, &loops->listening}) {
    // Whole segments of 12 pictures, of which the stream's first lacks three.
    ASSERT_EQ(loop->size() % 2, 0u);
    const size_t drawn = loop->size() / 2 + 1;
    EXPECT_GE(drawn, 20u);
    EXPECT_LE(drawn, 32u);
    for (size_t k = 1; k + 1 < drawn; ++k)
      EXPECT_EQ((*loop)[k].rgb, (*loop)[loop->size() - k].rgb) << k;
  }
  EXPECT_NE(loops->idle.back().rgb, loops->listening.back().rgb);
  EXPECT_EQ(draw_loops(runner, config, "a calm face", 20)->idle[5].rgb, loops->idle[5].rgb);
}

TEST(TurnRunner, ATokenOfNobodyGoesToTheNext) {
  StreamEngine engine = avatar_engine(1, 1);
  TurnRunner runner(engine);
  const int nobody = runner.new_id();
  runner.token().request(nobody);
  SessionConfig config;
  config.first_pictures = 1;
  config.in_engine = engine.plan().under_way();
  EXPECT_FALSE(draw_loops(runner, config, "a calm face", 4)->idle.empty());
  EXPECT_FALSE(runner.token().holds(nobody));
}

}  // namespace
}  // namespace weft::test
