#pragma once
// ImageDesk: a thread that makes the answers of routes of images. It reads and encodes pictures,
// which would hold up the server's thread and those that tell events.
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

namespace weft {

class ImageDesk {
 public:
  using Clock = std::chrono::steady_clock;

  ImageDesk();
  // Ends after the tasks whose time has come. Those of later are dropped.
  ~ImageDesk();
  ImageDesk(const ImageDesk&) = delete;
  ImageDesk& operator=(const ImageDesk&) = delete;

  // Runs the task at `when`, or soon where that has passed, one task after the other. Tasks of one
  // time keep the order in which they were posted. What a task throws is dropped. From any thread.
  void post(std::function<void()> task, Clock::time_point when = {});

 private:
  void work();

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::multimap<Clock::time_point, std::function<void()>> tasks_;
  bool is_ending_ = false;
  std::thread thread_;  // last, because it uses the others
};

}  // namespace weft
