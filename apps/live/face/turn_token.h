#pragma once
// TurnToken: the right to use an engine that several sessions share. One session has it at a time;
// the others wait in the order in which they asked. A session gives it back at the end of each
// turn, so one that waits gets it after at most one turn of every other. Every change costs a
// constant number of operations for any number of sessions. Source: the token ring of "Generative
// AI for Video Translation: A Scalable Architecture for Multilingual Video Conferencing" (arXiv
// 2512.13904), with a queue in place of the ring.
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>

namespace weft {

// Any thread may call anything.
class TurnToken {
 public:
  // Asks for the token. Does nothing if this session has it or waits for it.
  void request(int session);
  // Gives it back, or stops waiting for it. The one that waits longest gets it.
  void release(int session);
  bool holds(int session) const;
  // The sessions before this one: 0 for the holder. nullopt where it does not want the token.
  std::optional<int> position(int session) const;
  int wanted() const;  // sessions that have the token or wait for it
  // Waits until a session has the token, and returns it; nullopt after close(), once no session
  // wants it.
  std::optional<int> wait() const;
  void close();
  int64_t turns() const;  // times that the token was given to a session

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::deque<int> queue_;  // the holder, then those that wait
  int64_t turns_ = 0;
  bool closed_ = false;
};

}  // namespace weft
