#pragma once
// ControlPlane: heartbeats of a job's processes over TCP, beside the messages they work with. It
// tells a dead or stopped rank from one that computes, and carries the one line all ranks end with.
#include <functional>
#include <memory>
#include <string>

namespace weft {

struct ControlSettings {
  double beat_s = 0.5;
  double suspect_s = 2;   // a warning
  double dead_s = 4.5;    // the end of the job
  double startup_s = 60;  // within which every rank must have said hello
  double grace_s = 1;     // between a failure and `stuck`, for the rank to end by itself
};

// Called on a thread of the control plane's own.
struct ControlReports {
  std::function<std::string()> last_operation;           // of this rank, for the others' lines
  std::function<void(const std::string& line)> warning;  // on the first rank
  std::function<void(const std::string& line)> failure;  // on every rank, at most once
  std::function<void(const std::string& line)> stuck;    // where the rank has not ended since
};

class ControlPlane {
 public:
  // Every rank makes one. `share` gives every rank the first one's text (a broadcast). The first
  // listens on one of `interfaces` ("eth0,eth1"), on any that others can reach where it has none of
  // them. Error(kComm) where no connection can be made.
  ControlPlane(int rank, int size, const std::string& interfaces,
               const std::function<std::string(const std::string&)>& share, ControlReports reports,
               const ControlSettings& settings = {});
  // Says farewell: a rank that has ended in order is not missed.
  ~ControlPlane();
  ControlPlane(const ControlPlane&) = delete;
  ControlPlane& operator=(const ControlPlane&) = delete;

  // Sleeps until every rank has come here, once, at its end. Error(kComm) where the job has failed.
  void await_all();
  // Ends the job with `line` on every rank.
  void fail(const std::string& line);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft
