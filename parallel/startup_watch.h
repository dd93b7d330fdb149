#pragma once
// StartupWatch: a limit on the time that a job's processes take to find each other. Each leaves a
// sign of life in a folder that all processes of its host see, so that the one line names who is
// missing.
#include <functional>
#include <memory>
#include <string>

namespace weft {

class StartupWatch {
 public:
  // From here to the destructor this process is starting. Where that takes `limit_s`,
  // `late(line)` is called once, on a thread of the watch's own. `folder` exists or is "" (nothing
  // can be said about others then); `ranks_here` of the `ranks` are on this host.
  StartupWatch(const std::string& folder, int rank, int ranks, int ranks_here, double limit_s,
               std::function<void(const std::string& line)> late);
  ~StartupWatch();
  StartupWatch(const StartupWatch&) = delete;
  StartupWatch& operator=(const StartupWatch&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft
