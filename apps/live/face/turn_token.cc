#include "apps/live/face/turn_token.h"

#include <algorithm>

namespace weft {

void TurnToken::request(int session) {
  std::lock_guard lock(mutex_);
  if (std::ranges::find(queue_, session) != queue_.end()) return;
  queue_.push_back(session);
  turns_ += queue_.size() == 1;
  changed_.notify_all();
}

void TurnToken::release(int session) {
  std::lock_guard lock(mutex_);
  const auto at = std::ranges::find(queue_, session);
  if (at == queue_.end()) return;
  const bool held = at == queue_.begin();
  queue_.erase(at);
  turns_ += held && !queue_.empty();
  changed_.notify_all();
}

bool TurnToken::holds(int session) const {
  std::lock_guard lock(mutex_);
  return !queue_.empty() && queue_.front() == session;
}

std::optional<int> TurnToken::position(int session) const {
  std::lock_guard lock(mutex_);
  const auto at = std::ranges::find(queue_, session);
  if (at == queue_.end()) return std::nullopt;
  return static_cast<int>(at - queue_.begin());
}

int TurnToken::wanted() const {
  std::lock_guard lock(mutex_);
  return static_cast<int>(queue_.size());
}

std::optional<int> TurnToken::wait() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return closed_ || !queue_.empty(); });
  if (queue_.empty()) return std::nullopt;
  return queue_.front();
}

void TurnToken::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

int64_t TurnToken::turns() const {
  std::lock_guard lock(mutex_);
  return turns_;
}

}  // namespace weft
