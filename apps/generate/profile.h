#pragma once
// --profile and --trace: recorders of this process's ranks, the table of where time went, and the
// trace file.
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "apps/command_line/flags.h"
#include "engine/runner/runner_settings.h"
#include "io/json.h"
#include "io/part_file.h"
#include "kernels/trace.h"

namespace weft {

class Profiling final : public RunRecorder {
 public:
  // Throws, before anything is run, where the trace could not be written.
  Profiling(const Flags& flags, const Ranks& ranks);

  bool tables() const { return profile_; }  // --profile was given
  // The op table for streams: metered ops where anything is recorded, else null (the default).
  const Ops* ops() const override { return recorders_.empty() ? nullptr : &metered_ops(); }

  // Records the calling thread as rank `rank` during the lifetime of the returned object; null
  // where nothing is recorded.
  std::unique_ptr<MeterScope> record(int rank) override;

  // restart() begins a new result on the calling thread, which must have called record(); result()
  // returns its profile so far, or null without --profile.
  void restart() override;
  Json result() override;

  // If ranks are processes with --profile, the first one receives the figures of the others. Must
  // be called at the end of a job, outside of any stage.
  void gather(Communicator& world) override;

  // Runs `work`, then writes the trace, also where `work` fails. With --profile it prints a line
  // per rank, and the first rank's table where result() was never called.
  void around(const std::map<std::string, std::string>& metadata,
              const std::function<void()>& work) override;

 private:
  struct RankLine {
    double seconds, messages, bytes;  // in passes of the models, in messages, in bytes sent
  };
  static RankLine line_of(const Recorder& recorder);
  void write(const std::map<std::string, std::string>& metadata) const;
  void print() const;

  bool profile_, processes_, json_;
  std::atomic<bool> told_ = false;  // the threads of several replicas may set it
  std::string trace_;
  Overwrite overwrite_;
  std::map<int, std::unique_ptr<Recorder>> recorders_;
  std::vector<RankLine> lines_;  // one per rank, after gather()
};

// {"rank", "seconds", "stages": [{"stage", "seconds", "share", "between_ops", "families": {name:
// {"calls", "seconds", "share", "bytes", "flop", "gflops", "gbs"}}}], "helpers": {name: seconds}}.
Json profile_json(const Recorder& recorder, int rank);
void print_profile(const Json& profile);  // as a table on standard error

}  // namespace weft
