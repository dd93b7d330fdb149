#pragma once
// TurnRunner: the one engine of several sessions. A thread of its own runs the turn of whoever has
// the token.
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "apps/live/face/session_run.h"

namespace weft {

// Any thread may call anything. The engine is not used by others while the runner lives.
class TurnRunner {
 public:
  explicit TurnRunner(StreamEngine& engine);
  ~TurnRunner();  // waits for the turn that runs

  // The token and a number that is new, for the configuration of a session. They outlive it.
  TurnToken& token() { return token_; }
  int new_id();

  // From now on `session` gets its turns. An error of the engine fails it.
  void join(int id, std::shared_ptr<Session> session, std::string caption);
  void set_caption(int id, std::string caption);  // from its next turn on
  // Ends its turns. One that runs ends when the session does.
  void leave(int id);

 private:
  struct Speaker {
    std::shared_ptr<Session> session;
    std::string caption;
  };
  void run();

  StreamEngine& engine_;
  TurnToken token_;
  std::mutex mutex_;  // guards the two below
  std::map<int, Speaker> speakers_;
  int next_id_ = 0;
  std::thread thread_;
};

// Draws `pictures` of a face that is idle and as many that listen, as a turn of its own, or more up
// to whole segments. Each loop runs forth and back, so that its end meets its beginning. `config`
// is that of the sessions. Throws the engine's error.
std::shared_ptr<const SessionLoops> draw_loops(TurnRunner& runner, SessionConfig config,
                                               const std::string& caption, int64_t pictures);

}  // namespace weft
