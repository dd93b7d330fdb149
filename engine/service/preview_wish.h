#pragma once
// PreviewWish: previews of one job that a client waits for, evenly spaced over its steps.
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace weft {

// Chooses `count` of a job's previews: the first of two comes after a third of the steps.
class EvenPreviews {
 public:
  explicit EvenPreviews(int count) : count_(count) {}
  int count() const { return count_; }
  // True where the next one is due after `step` of `total` steps.
  bool due(int step, int total) const {
    return made_ < count_ && total > 0 && step * (count_ + 1) / total > made_;
  }
  void made() { ++made_; }

 private:
  int count_, made_ = 0;
};

// Is filled by the thread that draws. Everything may be called from any thread.
class PreviewWish {
 public:
  explicit PreviewWish(int count) : even_(count) {}

  bool due(int step, int total) const {
    const std::lock_guard lock(mutex_);
    return even_.due(step, total);
  }
  // Keeps the PNG where it is due.
  void offer(int step, int total, const std::shared_ptr<const std::string>& png) {
    const std::lock_guard lock(mutex_);
    if (!even_.due(step, total)) return;
    even_.made();
    kept_.push_back(png);
  }
  // The PNGs since the last call.
  std::vector<std::shared_ptr<const std::string>> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(kept_, {});
  }
  int count() const {
    const std::lock_guard lock(mutex_);
    return even_.count();
  }

 private:
  mutable std::mutex mutex_;  // guards the members below
  EvenPreviews even_;
  std::vector<std::shared_ptr<const std::string>> kept_{};
};

}  // namespace weft
