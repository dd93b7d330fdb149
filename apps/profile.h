#pragma once
// --profile and --trace: recorders of this process's ranks, the table of where time went, and the
// trace file.
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/device.h"
#include "apps/flags.h"
#include "io/part_file.h"
#include "kernels/trace.h"

namespace weft {

class Profiling {
 public:
  // Error before anything is run where the trace could not be written.
  Profiling(const Flags& flags, const Ranks& ranks);

  bool tables() const { return profile_; }  // --profile was given
  // What streams run: metered ops where anything is recorded, else null (the default).
  const Ops* ops() const { return recorders_.empty() ? nullptr : &metered_ops(); }

  // Records the calling thread as a rank while the result lives; null where nothing is recorded.
  // In a process that is one rank of several, `rank` is its number.
  std::unique_ptr<MeterScope> record(int rank);

  // A result begins on the calling thread, which record() was called on; and its profile so far,
  // null where none was asked for.
  void restart();
  nlohmann::json result();

  // Where ranks are processes, each with --profile: the first one learns what the others say. At
  // the end of a job, outside of any stage.
  void gather(Communicator& world);

  // Runs `work`, then writes the trace, also where it fails: of what was done until then. With
  // --profile, of what no result() was asked of: the first rank's table; and a line per rank.
  void around(const std::map<std::string, std::string>& metadata,
              const std::function<void()>& work);

 private:
  struct RankLine {
    double seconds, messages, bytes;  // of the models' passes; in messages; moved by them
  };
  static RankLine line_of(const Recorder& recorder);
  void write(const std::map<std::string, std::string>& metadata) const;
  void print() const;

  bool profile_, processes_, json_;
  std::atomic<bool> told_ = false;  // by a replica's root, each on its thread
  std::string trace_;
  Overwrite overwrite_;
  std::map<int, std::unique_ptr<Recorder>> recorders_;
  std::vector<RankLine> lines_;  // of every rank, where gather() made them known
};

// {"rank", "seconds", "stages": [{"stage", "seconds", "share", "between_ops", "families": {name:
// {"calls", "seconds", "share", "bytes", "flop", "gflops", "gbs"}}}], "helpers": {name: seconds}}.
nlohmann::json profile_json(const Recorder& recorder, int rank);
void print_profile(const nlohmann::json& profile);  // as a table on standard error

}  // namespace weft
