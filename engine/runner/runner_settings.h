#pragma once
// The settings of a JobRunner: where it draws, how results are written, and who hears of it.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "engine/parts/ranks.h"
#include "engine/planning/machine.h"
#include "engine/runner/earlier_run.h"
#include "engine/runner/reporter.h"
#include "engine/runner/sidecar.h"
#include "kernels/meter.h"

namespace weft {

// Records what ranks do, for tables and traces. Everything is called on the recording rank. This
// class records nothing.
struct RunRecorder {
  virtual ~RunRecorder() = default;
  virtual const Ops* ops() const { return nullptr; }  // of the streams; null: the default
  // Records the calling thread as this rank during the lifetime of the returned object.
  virtual std::unique_ptr<MeterScope> record(int) { return nullptr; }
  virtual void restart() {}                  // begins a new result
  virtual Json result() { return nullptr; }  // of it so far; null: none is made
  // Gives the first process the figures of the others, at the end of a job.
  virtual void gather(Communicator&) {}
  // Runs `work`, then writes what was recorded, also where it fails.
  virtual void around(const std::map<std::string, std::string>&,
                      const std::function<void()>& work) {
    work();
  }
};

// Hears of one drawing; finish() says that its files are complete.
struct DrawingWatch : ProgressListener {
  virtual void finish() = 0;
};

struct RunnerSettings {
  Ranks ranks{};
  GeneratorOptions options{};  // of this process's first rank
  RankMachine machine{};
  // The layout that was asked for; "auto" leaves it open. Stages whose ranks have settings of their
  // own are not 0 (decode_rank: not -1) in `fixed`.
  std::string layout = "auto";
  Layout fixed{};

  // The files of results.
  bool overwrite = false, with_sidecar = true;
  Latents latents = Latents::kRemove;
  std::optional<double> checkpoint_seconds{};  // unset: no checkpoints
  std::optional<double> segment_seconds{};     // of each file; unset: a result is one file
  std::optional<int64_t> segment_frames(double fps) const {
    if (!segment_seconds) return std::nullopt;
    return std::max<int64_t>(1, std::llround(*segment_seconds * fps));
  }
  int cache_audit = 0;
  std::string text_cache{};  // a folder; "": none
  RecordRules records{};
  ResumeRule resume{};
  Json kept_flags = Json::object();  // of the command, for its checkpoints

  // Those who hear of it. Each may be empty.
  Reporter reporter{};
  std::function<std::unique_ptr<DrawingWatch>(const Drawing& drawing, bool several)> watch{};
  // Tells a user how to resume the job at these names; "" where nothing was left.
  std::function<std::string(const OutputNames& names)> resume_advice{};
  std::shared_ptr<RunRecorder> recorder = std::make_shared<RunRecorder>();
};

}  // namespace weft
