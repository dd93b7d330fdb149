#include "apps/live/face/turn_runner.h"

#include <utility>

namespace weft {

TurnRunner::TurnRunner(StreamEngine& engine) : engine_(engine), thread_([this] { run(); }) {}

TurnRunner::~TurnRunner() {
  token_.close();
  thread_.join();
}

int TurnRunner::new_id() {
  const std::lock_guard lock(mutex_);
  return next_id_++;
}

void TurnRunner::join(int id, std::shared_ptr<Session> session, std::string caption) {
  const std::lock_guard lock(mutex_);
  speakers_[id] = {std::move(session), std::move(caption)};
}

void TurnRunner::set_caption(int id, std::string caption) {
  const std::lock_guard lock(mutex_);
  if (const auto found = speakers_.find(id); found != speakers_.end())
    found->second.caption = std::move(caption);
}

void TurnRunner::leave(int id) {
  const std::lock_guard lock(mutex_);
  speakers_.erase(id);
}

void TurnRunner::run() {
  while (const std::optional<int> id = token_.wait()) {
    Speaker speaker;
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = speakers_.find(*id); found != speakers_.end()) speaker = found->second;
    }
    if (speaker.session)
      run_session(engine_, speaker.caption, *speaker.session);
    else
      token_.release(*id);
  }
}

namespace {

// The pictures, and those between their ends once more in the opposite order.
void run_back(std::vector<Frame>& loop) {
  for (size_t k = loop.size(); k-- > 2;) loop.push_back(loop[k - 1]);
}

}  // namespace

std::shared_ptr<const SessionLoops> draw_loops(TurnRunner& runner, SessionConfig config,
                                               const std::string& caption, int64_t pictures) {
  config.live = false;
  config.loops = nullptr;
  config.turns = &runner.token();
  config.id = runner.new_id();
  const auto session = std::make_shared<Session>(config);
  runner.join(config.id, session, caption);
  std::jthread asks([&] {
    try {
      session->rest(SessionState::kIdle, pictures);
      session->rest(SessionState::kListening, pictures);
      session->close();
    } catch (const std::exception&) {  // that of the engine, which next() throws, too
    }
  });
  auto loops = std::make_shared<SessionLoops>();
  try {
    while (std::optional<SessionSlot> slot = session->next()) {
      const bool listens = slot->state == SessionState::kListening;
      (listens ? loops->listening : loops->idle).push_back(std::move(slot->picture));
    }
  } catch (...) {
    runner.leave(config.id);
    throw;
  }
  runner.leave(config.id);
  run_back(loops->idle);
  run_back(loops->listening);
  return loops;
}

}  // namespace weft
