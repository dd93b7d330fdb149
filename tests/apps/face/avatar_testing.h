#pragma once
// The pocket avatar as a stream, and a session that plays it.
#include <gtest/gtest.h>

#include <thread>

#include "apps/live/face/session_run.h"
#include "tests/engine/stream_job.h"

namespace weft::test {

inline std::shared_ptr<const OpenModel> avatar() {
  static const auto open = std::make_shared<const OpenModel>("models/pocket_avatar");
  return open;
}

inline StreamSettings avatar_settings(uint64_t seed, int steps = 1, int layers = 1,
                                      bool apart = false) {
  StreamSettings settings;
  settings.width = settings.height = 96;
  settings.seed = seed;
  settings.layout = StreamRun::split(steps, layers);
  settings.decodes_apart = apart;
  settings.threads = 1;
  return settings;
}

inline SessionConfig avatar_session(int in_engine, uint64_t seed = 0) {
  SessionConfig config;
  config.seed = seed;
  config.first_pictures = 1;
  config.in_engine = in_engine;
  return config;
}

// Runs a session to its end and returns its slots; `speak` runs on a thread of its own.
inline std::vector<SessionSlot> play(StreamEngine& engine, const std::string& caption,
                                     Session& session, const std::function<void()>& speak) {
  std::vector<SessionSlot> slots;
  std::thread runs([&] { run_session(engine, caption, session); });
  std::thread speaks([&] {
    try {
      speak();
    } catch (...) {
      session.fail(std::current_exception());
    }
  });
  std::exception_ptr error;
  try {
    while (std::optional<SessionSlot> slot = session.next()) slots.push_back(std::move(*slot));
  } catch (...) {
    error = std::current_exception();
  }
  runs.join();
  speaks.join();
  if (error) std::rethrow_exception(error);
  return slots;
}

}  // namespace weft::test
