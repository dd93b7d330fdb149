#pragma once
// JobRunner: draws resolved jobs one after the other on ranks. Each gets its file, its sidecar, and
// checkpoints while it runs.
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "engine/generation/generator.h"
#include "engine/planning/machine.h"
#include "engine/planning/upload_forecast.h"
#include "engine/runner/runner_settings.h"
#include "io/json.h"

namespace weft {

// A finished file, for its result line and its sidecar.
struct Finished {
  Drawing drawing;
  RunResult result;
  Json profile{};                  // null where none was asked for
  UploadForecast upload{};         // predicted, where weights are copied in all the time
  std::optional<PromptCut> cut{};  // where the prompt was too long for the text encoder
  int64_t segments = 0;            // files of segments; 0: the result is one file

  std::string output() const;  // the file of the result, or the first of its segments
};
using ResultListener = std::function<void(const Finished&)>;
// Hears of the drawing of this index that failed.
using FailureListener = std::function<void(size_t index, const Error& error)>;

// The stop flag of drawings that nobody stops.
inline const std::atomic<bool> kNeverStopped{false};

class JobRunner {
 public:
  JobRunner(RunnerSettings settings, std::shared_ptr<const OpenModel> model);
  ~JobRunner();

  const Ranks& ranks() const { return settings_.ranks; }
  // For planning: it belongs to no rank.
  const Generator& generator() const { return generator_; }
  const Layout& layout() const { return layout_; }
  const MemoryPlan& plan() const { return plan_; }  // of the first request
  const UploadForecast& upload() const { return upload_; }
  // On the first rank, where a simulation chose the layout: the choice, and what it ran on.
  const std::optional<LayoutChoice>& choice() const { return choice_; }
  const std::optional<SimulatedMachine>& machine() const { return machine_; }

  // The layout of a job with these limits; nullopt where arrange() has to choose one. Any thread
  // may ask, also while jobs are drawn. Error(kUsage) where none is legal.
  std::optional<Layout> given_layout(const LayoutLimits& limits) const;

  // Finds a layout under which all of these drawings can be made: the one that the settings ask
  // for, else the one that an interrupted run of the first chose, else the fastest by simulation.
  // A simulation or a plan for jobs of the same facts (forecast_facts) is not computed
  // again. Error(kUsage).
  void arrange(const std::vector<Drawing>& drawings);

  // Draws all; a replica that is done with one takes the next. The drawings of one command are
  // `several`: those that are complete are not drawn again, and each checkpoint resumes all. The
  // listeners are called in the process of the replica's root. Without `on_failure` a failure ends
  // all; with it the next one goes on, unless it comes in the middle of a drawing that several
  // processes share.
  struct Drawings {
    std::vector<Drawing> all;
    bool several = false;
    // Receives the progress in place of the watches of the settings.
    ProgressListener* listener = nullptr;
    const std::atomic<bool>* stop = &kNeverStopped;  // true: the drawings end, resumable
    uint64_t beside = 0;  // held beside the drawings on the device of this process's first rank
  };
  void draw(const Drawings& drawings, const ResultListener& on_result,
            const FailureListener& on_failure = nullptr);

  // From now on the ranks keep their weights between calls of draw(); under another layout, those
  // that it gives them, too. A stop, and a failure within a drawing of several ranks, releases
  // them.
  void keep_ranks();

  // True where the drawing that was arranged fits in memory beside tensors of this process that
  // take so many bytes on the device of its first rank. It then does so without offloading more,
  // because ranks plan with the memory that was free when they began. False where they are yet to
  // begin.
  bool fits_beside(uint64_t bytes) const;

  // Warns of prompts that the text encoder does not read to their end; returns the prompt's cut.
  std::optional<PromptCut> checked_prompt(const Request& request) const;

 private:
  struct Work;  // a call of draw()
  class Team;   // ranks that wait for calls of draw()
  // `facts` are the first drawing's.
  Layout layout_for(const Drawing& first, const std::string& facts, const LayoutLimits& limits);
  // All processes measure, the first one simulates, and all receive its choice.
  std::string simulated_layout(const Drawing& first, const std::string& facts,
                               const LayoutLimits& limits, std::span<const Layout> layouts);
  GeneratorOptions planned_options() const;
  // The number of the next drawing of a pass, which no other replica gets.
  using NextDrawing = std::function<int64_t(int pass)>;
  using OnRank = std::function<void(Generator&, const NextDrawing&)>;
  void on_rank(Communicator& world, const OnRank& run);
  void run_on_team(Work& work);
  void run_jobs(Work& work, Generator& mine, const NextDrawing& next);
  void run_job(Work& work, Generator& mine, size_t index);
  struct Attempt;  // one drawing, whose names are claimed
  std::unique_ptr<Attempt> begin(const Work& work, Generator& generator, const Drawing& drawing);
  void draw_one(const Work& work, Generator& generator, Attempt& attempt);
  std::unique_ptr<FrameSink> sink_of(const Generator& generator, const Drawing& drawing,
                                     const Checkpoint* left) const;
  uint64_t rank_share(uint64_t bytes) const;
  RunOptions joining(const Generator& mine, const Drawings& drawings) const;
  std::map<std::string, std::string> notes(const Generator& generator,
                                           std::span<const Drawing> drawings) const;
  void tell_notes(const OpenModel& model);
  void warn_of_cut(const std::string& text, const PromptCut& cut) const;

  const RunnerSettings settings_;
  const GeneratorOptions options_;
  const std::shared_ptr<const OpenModel> model_;
  Generator generator_;
  Layout layout_;
  std::string layout_text_;  // as it was asked for or chosen
  RecordRules records_;      // with the layout that was chosen
  std::optional<LayoutChoice> choice_;
  std::optional<MeasuredRanks> measured_;  // before the first weights took the memory
  std::optional<SimulatedMachine> machine_;
  MemoryPlan plan_;
  UploadForecast upload_;
  // By the facts of the first drawing and, of choices, by the layouts that were possible; of plans,
  // by the layout.
  std::map<std::string, LayoutChoice> choices_;
  std::map<std::string, std::pair<MemoryPlan, UploadForecast>> plans_;
  std::set<std::string> told_;               // notes of the model and its variants
  int passes_ = 0;                           // of all calls of draw(), the same on all ranks
  std::optional<GeneratorOptions> planned_;  // with keep_ranks(): the memory that was free then
  std::unique_ptr<Team> team_;               // last, because its threads use the members above
};

}  // namespace weft
