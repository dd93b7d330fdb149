#pragma once
// StartupWatch: limits the time that a job's processes take to find each other. Each process keeps
// touching a file in a folder that all processes of its host see, so that the error can name the
// missing ranks.
#include <functional>
#include <memory>
#include <string>

namespace weft {

class StartupWatch {
 public:
  // This process counts as starting until the destructor. If that takes `limit_s`, a thread of the
  // watch calls `late(line)` once. `folder` exists, or is "" and the line says nothing about other
  // ranks; `ranks_here` of the `ranks` are on this host.
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
