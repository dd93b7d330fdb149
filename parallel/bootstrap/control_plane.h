#pragma once
// ControlPlane: heartbeats between a job's processes over TCP connections of its own. It recognises
// a dead or stopped rank while others compute, and gives every rank the same error line to end
// with.
#include <functional>
#include <memory>
#include <string>

#include "parallel/bootstrap/clock_offset.h"

namespace weft {

struct ControlSettings {
  double beat_s = 0.5;
  double suspect_s = 2;   // silence that gives a warning
  double dead_s = 4.5;    // silence that ends the job
  double startup_s = 60;  // every rank must have said hello within this time
  double grace_s = 1;     // time from a failure to `stuck`, for the rank to end by itself
  int64_t (*clock_ns)() = steady_clock_ns;
};
// Settings that end the job after `seconds` of silence. 0: silence gives a warning but never ends
// the job; a closed connection still does.
ControlSettings settings_for_timeout(double seconds);

// Callbacks; the control plane's thread calls them.
struct ControlReports {
  std::function<std::string()> last_operation;           // this rank's, for other ranks' errors
  std::function<void(const std::string& line)> warning;  // called on the first rank
  std::function<void(const std::string& line)> failure;  // called once per rank
  std::function<void(const std::string& line)> stuck;    // called after grace_s
};

class ControlPlane {
 public:
  // Every rank makes one. `share` gives every rank the first one's text (a broadcast); `interfaces`
  // is as for open_listener (parallel/bootstrap/listener.h). Error(kComm) where no connection can
  // be made.
  ControlPlane(int rank, int size, const std::string& interfaces,
               const std::function<std::string(const std::string&)>& share, ControlReports reports,
               const ControlSettings& settings = {});
  // Says goodbye, so that the other ranks do not take this one for dead.
  ~ControlPlane();
  ControlPlane(const ControlPlane&) = delete;
  ControlPlane& operator=(const ControlPlane&) = delete;

  // Every rank calls it once, at its end; it sleeps until all have. Error(kComm) where the job has
  // failed.
  void await_all();
  // Ends the job with `line` on every rank.
  void fail(const std::string& line);
  // Transport::take_number(). Error(kComm) where the job has failed.
  int64_t take_number(int series);
  // The first rank's clock, as every rank knows it from the heartbeats: within half the fastest
  // round trip. Clocks of different hosts have nothing else in common.
  int64_t job_clock_ns() const;
  // Counts the messages of other ranks, and how often a connection was looked at for them.
  struct Work {
    int64_t messages = 0, looks = 0;
  };
  Work work() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft
