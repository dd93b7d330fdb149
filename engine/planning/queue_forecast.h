#pragma once
// Forecasts of the block queue. A few forwards of every kind are simulated, and the plans are timed
// with them (parallel/schedule/plan_timing.h). Where the video has many more blocks than steps, the
// turns of the full queue are alike, so some of them stand for all.
#include <map>

#include "engine/planning/forecast.h"
#include "parallel/schedule/block_queue.h"
#include "parallel/schedule/plan_timing.h"

namespace weft {

// The plans of a replica and the times of their steps, from the encoded prompts on.
struct QueueTimeline {
  QueuePlanConfig config;  // with the blocks that the plans have
  int skipped = 0;         // blocks of the video that the plans do not have
  std::vector<Plan> plans;
  std::vector<std::vector<StepTime>> times;
  double block_s = 0;        // from one finished block to the next while the queue is full
  double first_frame_s = 0;  // when the first frame is decoded, and when the last one is
  double end_s = 0;
  double decode_s = 0;  // for which the first rank decodes, beside its forwards
  Uploads uploads{};    // per step of a block
  // Messages inside the forwards of each rank, in the whole video.
  std::vector<CommCounters> inside;

  // Counts how often the video has a pass of the plans: blocks that are left out are like one in
  // the middle.
  int64_t repeats(const Pass& pass) const {
    return 1 + (pass.clip == config.blocks / 2 ? skipped : 0);
  }
};

class QueueForecast {
 public:
  explicit QueueForecast(const PlannedJob& job);
  QueueTimeline timeline(const Layout& replica);
  // The forecast of one video, without the memory.
  Forecast operator()(const Layout& replica);
  // Only the time for which the busiest rank computes forwards, or reads their weights: the
  // forecast is no shorter. This takes a fraction of the work.
  Forecast at_least(const Layout& replica);

 private:
  // Steps of a rank that take equally long.
  struct StepClass {
    int rank = 0;
    Step::Kind kind{};
    int model = 0, branch = 0;
    bool first_block = false, reuses = false, reads_keys = false;
    auto operator<=>(const StepClass&) const = default;
  };
  struct Costs {
    std::map<StepClass, double> seconds;
    std::vector<CommCounters> inside;  // of one forward
  };
  using Done = std::vector<std::pair<Step, StepTime>>;  // of one rank
  static StepClass class_of(const Step& step, int rank);
  QueuePlanConfig config_for(const Layout& replica) const;
  std::shared_ptr<const OpenModel> with_blocks(int blocks);
  static Costs costs_of(const Layout& replica, const std::vector<Done>& done,
                        std::span<const SimulatedRank> ranks);
  Costs measured(const Layout& replica, int blocks);
  Costs measured_all(const Layout& replica);
  const Costs& costs(const Layout& replica);
  static double seconds(const Costs& costs, const Step& step, int rank);
  const std::vector<MemoryPlan>& memory(const Layout& replica);
  double reading_s(std::span<const MemoryPlan> memory, const Step& step, int rank) const;
  Uploads uploads(const QueueTimeline& timeline, const Layout& replica);
  int64_t pictures(int block) const;

  const PlannedJob& job_;
  GeneratorOptions options_;
  const JobFacts facts_;
  double text_s_ = 0, picture_s_ = 0;                       // of one rank
  std::map<int, std::shared_ptr<const OpenModel>> models_;  // by their blocks
  std::vector<std::pair<Layout, Costs>> costs_;
  std::vector<std::pair<Layout, std::vector<MemoryPlan>>> memory_;
};

}  // namespace weft
