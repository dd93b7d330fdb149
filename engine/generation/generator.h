#pragma once
// Generator: loads a model directory once and turns requests into frames, which go to a sink. In a
// replica of several ranks each rank has a Generator, all run the same requests in the same order,
// and the root delivers the frames. Between two jobs the ranks may be given another layout. A job
// with other LoRAs than the one before has the weights that they change read again.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/job/job_facts.h"
#include "engine/job/options.h"
#include "engine/memory/memory_plan.h"
#include "engine/parts/open_model.h"
#include "engine/parts/rank_placement.h"
#include "io/media/video.h"
#include "parallel/schedule/plan_check.h"

namespace weft {

struct JobSchedule {
  std::vector<Plan> plans;
  PlanRules rules;
};

class Generator {
 public:
  // Weights are loaded when they are first used. Generators may share an open model.
  Generator(std::shared_ptr<const OpenModel> model, const GeneratorOptions& options,
            const RankPlacement& placement = {});
  // Opens the model first.
  Generator(const std::string& model_directory, const GeneratorOptions& options,
            const RankPlacement& placement = {});
  ~Generator();

  const std::shared_ptr<const OpenModel>& model() const;  // as it was opened
  // The model with the LoRAs of a request (variant_of).
  std::shared_ptr<const OpenModel> model_of(const Request& request) const;
  const DefaultSettings& defaults() const;
  const ModelLimits& limits() const;
  const GeneratorOptions& options() const;
  // The facts of a resolved request.
  JobFacts facts(const Request& request) const;
  // The sizes that limit how a resolved request can be split over ranks.
  LayoutLimits layout_limits(const Request& request) const;
  const RankPlacement& placement() const;
  // The published model's name, for run headers and metadata.
  std::string model_name() const;
  // The record of a resolved request (job_spec.h).
  std::string job_record(const Request& request) const;

  // The end of a prompt that the text encoder does not read; nullopt where it reads all of it.
  std::optional<PromptCut> prompt_cut(const std::string& prompt) const;

  // Fills open fields from the model's defaults and validates the result. Throws Error(kUsage), and
  // Error(kModel) for a LoRA that does not fit.
  Request resolve(const Request& request) const;
  // The memory plan of a resolved request. Loads nothing.
  MemoryPlan plan(const Request& request) const;
  // A generator of the first rank of a layout, for planning alone: it takes nothing of the device.
  // It has the memory that this one found when it was made. Error(kUsage) as the constructor.
  std::shared_ptr<Generator> planning_rank(Layout layout) const;
  // The error line for a resolved request whose plan does not fit: the memory that is missing, and
  // layouts and settings under which the job would fit.
  std::string refusal(const Request& request);
  // The plans of all ranks, whatever the method, and the rules that they follow.
  JobSchedule whole_schedule(const Request& request) const;

  // Throws what run() throws of a job that cannot begin on this rank: Error(kUsage) of a setting,
  // Error(kMemory) where the plan does not fit. Sends and loads nothing.
  void check(const Request& request);

  // Makes this rank one of a replica of `world` under another layout (RankPlacement::of). Weights
  // that this rank holds under both stay loaded. All ranks of the world call it where nothing is
  // under way; it returns when all have released what they no longer hold. Throws Error(kUsage) as
  // the constructor does, before it changes anything.
  void place(Communicator& world, const Layout& layout);

  // Returns the root's value on every rank; all ranks must call it.
  int64_t broadcast_from_root(int64_t value);

  // Runs one job. Throws Error(kMemory) before anything is loaded if the plan does not fit. `sink`
  // receives the frames on a thread of its own while the decoder runs; null: frames are only
  // hashed. Sink and listener are used on the root.
  RunResult run(const Request& request, FrameSink* sink, const RunOptions& options = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Predicts for the first rank of a layout, which holds no less than any other.
MemoryPlan plan_of_rank(const std::shared_ptr<const OpenModel>& model,
                        const GeneratorOptions& options, Layout layout, const Request& request);

}  // namespace weft
