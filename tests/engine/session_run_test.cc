// A session on a real engine: every picture once, in order, under every split, though the session
// lets only one block into the engine at a time.
#include "engine/session/session_run.h"

#include <thread>

#include "tests/engine/session_testing.h"
#include "tests/engine/small_job.h"
#include "tests/engine/stream_job.h"

namespace weft::test {
namespace {

struct Played {
  std::vector<SessionSlot> slots;
  SessionCounts counts;
};

Played play(const StreamSettings& settings, int in_engine, size_t pictures) {
  StreamEngine engine(std::make_shared<const OpenModel>(kModel), settings);
  SessionConfig config;
  config.block_frames = 2;
  config.first_block = config.first_pictures = 1;
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

StreamSettings settings(int steps, int layers, bool apart) {
  return {.width = 32,
          .height = 32,
          .steps = 2,
          .solver = "euler",
          .block_frames = 2,
          .window_frames = 4,
          .layout = StreamRun::split(steps, layers),
          .decodes_apart = apart,
          .threads = 1};
}

TEST(SessionRun, EveryPictureOnceUnderEverySplit) {
  const Played wanted = play(settings(1, 1, false), 1, 30);
  ASSERT_GE(wanted.slots.size(), 30u);
  for (const auto& [steps, layers, apart] : {std::tuple{1, 1, false},
                                             {1, 1, true},
                                             {2, 1, false},
                                             {2, 1, true},
                                             {1, 2, false},
                                             {1, 2, true},
                                             {2, 2, true}})
    for (const int in_engine : {1, 6}) {
      const Played got = play(settings(steps, layers, apart), in_engine, 30);
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
  for (const int layers : {1, 2}) EXPECT_TRUE(play(settings(1, layers, true), 2, 0).slots.empty());
}

TEST(SessionRun, AnErrorOfTheEngineIsTheSessions) {
  StreamSettings other = settings(2, 1, true);
  other.block_frames = 1;
  EXPECT_THROW(play(other, 2, 30), Error);
}

}  // namespace
}  // namespace weft::test
