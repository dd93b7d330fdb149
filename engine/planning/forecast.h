#pragma once
// Forecasts the time and the memory of a job under a layout by simulation, and chooses the layout
// that would be the fastest.
#include <array>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/generation/generator.h"
#include "engine/job/shortened.h"
#include "engine/parts/components.h"
#include "parallel/schedule/plan_timing.h"
#include "parallel/schedule/segment_queue.h"

namespace weft {

// The machine that a job is simulated on. Every rank has such a device and such a link.
struct Machine {
  DeviceModel device;
  Link link;
  // For weights that every forward copies from the host or reads from the file, for one rank.
  double upload_bytes_per_s = 0;
};

struct PlannedJob {
  std::shared_ptr<const OpenModel> model;  // with the request's LoRAs
  // The options of every rank, with metered_ops(). memory_limit is taken as it is, whatever memory
  // is free.
  GeneratorOptions options;
  Request request;  // resolved
  Machine machine;
  int64_t requests = 1;  // prompts, which the replicas of the data axis share
};

// The copying or reading of weights that do not stay on the device, per step, on the slowest rank.
struct Uploads {
  int64_t bytes = 0;
  double seconds = 0, hidden_s = 0;  // hidden_s overlaps with computing
};

// The plans of a replica and the times of their steps, from the encoded prompts on.
struct QueueTimeline {
  QueuePlanConfig config;  // with the blocks that the plans have
  int skipped = 0;         // blocks of the video that the plans do not have
  std::vector<Plan> plans;
  std::vector<std::vector<StepTime>> times;
  double segment_s = 0;      // from one finished segment to the next while the queue is full
  double first_frame_s = 0;  // when the first frame is decoded, and when the last one is
  double end_s = 0;
  double decode_s = 0;  // for which the first rank decodes, beside its forwards
  // Messages inside the forwards of each rank, in the whole video.
  std::vector<CommCounters> inside;

  // Counts how often the video has a pass of the plans: blocks that are left out are like one in
  // the middle.
  int64_t repeats(const Pass& pass) const {
    return 1 + (pass.segment == config.segments / 2 ? skipped : 0);
  }
};

struct Forecast {
  Layout layout;
  double seconds = 0;                                  // of all prompts
  double first_frame_s = 0;                            // of the queue, for the first prompt
  std::vector<std::pair<std::string, double>> stages;  // of one prompt
  Uploads uploads;
  std::vector<MemoryPlan> memory;    // per rank
  std::vector<SimulatedRank> ranks;  // of forecast_whole and of the queue; empty otherwise
  std::shared_ptr<const QueueTimeline> queue;  // of the queue alone, for the first prompt

  double stage(const std::string& name) const;  // 0 where there is no such stage
  uint64_t high_water() const;                  // of the rank that needs the most memory
  bool fits() const;
};

std::vector<MemoryPlan> memory_of(const PlannedJob& job, const Layout& layout);

// The uploads of a replica's step, each of whose forwards copies or reads so many bytes on one
// rank. Nothing of it is hidden yet.
Uploads uploads_of(const PlannedJob& job, const JobFacts& facts, const Layout& replica,
                   uint64_t forward_bytes);

// Simulates every step and every chunk. All weights of a queue are taken to be resident.
Forecast forecast_whole(const PlannedJob& job, const Layout& layout);

// Simulates the few steps, blocks and frames that stand for all (engine/job/shortened.h), and
// extends the times to the whole job, whose schedule repeats itself. What layouts have in common is
// simulated once. Leaves out the memory.
class QuickForecast {
 public:
  explicit QuickForecast(const PlannedJob& job);
  Forecast operator()(const Layout& layout) { return forecast(layout, false); }
  // A forecast that is never slower: by the simulation of one rank that waits for no other, and for
  // the queue by the time for which the busiest rank computes forwards, or reads their weights.
  Forecast at_least(const Layout& layout) { return forecast(layout, true); }

  // A replica with ranks for the stages that are no axes, and what these stages take.
  struct StagedLayout {
    Layout replica;
    double seconds;
  };
  // Every choice of text_ranks and vae_ranks for a replica of so many ranks, `layout`'s own first
  // (with_stage_ranks). Which axes split the forwards makes no difference to it.
  const std::vector<StagedLayout>& stage_choices(const Layout& layout);

 private:
  struct Ends {  // seconds of the stages that depend on no axis, but on the number of ranks
    double text = 0, audio = 0, image = 0, decode = 0;
    double seconds() const { return text + audio + image + decode; }
  };
  using StageKey = std::array<int, 4>;
  static StageKey stage_key(const Layout& replica);
  // The simulated steps that each rank has done, and when the ranks, or the first alone, ended.
  struct Sampled {
    std::vector<std::vector<std::pair<Step, StepTime>>> done;
    std::vector<SimulatedRank> ranks;
  };
  Forecast forecast(const Layout& layout, bool least);
  std::shared_ptr<const OpenModel> with_blocks(int blocks);
  Components parts(const std::shared_ptr<const OpenModel>& model,
                   const RankPlacement& placement) const;
  Sampled sampled(const Layout& replica, int blocks, bool alone);
  // The bytes that a forward reads where the job asks for it, on the rank with the most of them.
  uint64_t streamed(const Layout& replica) const;
  const Ends& ends(const Layout& replica);
  double denoise(const Layout& layout, bool alone);  // on all ranks, or on the first alone
  double simulated_denoise(const Layout& replica, bool alone);
  double least_denoise(Layout replica);
  // These are of the queue (queue_forecast.cc). A few forwards of every kind are simulated, and the
  // plans are timed with them (parallel/schedule/plan_timing.h). Where the video has many more
  // blocks than steps, the turns of the full queue are alike, so some of them stand for all.
  struct QueueCosts;
  void begin_queue();
  const QueueCosts& queue_costs(const Layout& replica);
  QueueTimeline queue_timeline(const QueueCosts& costs) const;
  Forecast queue_forecast(const Layout& replica);
  Forecast least_queue(const Layout& replica);

  const PlannedJob& job_;
  const JobFacts facts_;
  const TimeSample sample_;
  std::map<int, std::shared_ptr<const OpenModel>> models_;  // by their blocks
  std::map<StageKey, Ends> ends_;
  std::map<StageKey, std::vector<StagedLayout>> choices_;
  std::map<std::pair<Layout, bool>, double> denoise_;
  double text_s_ = 0, picture_s_ = 0;  // of a queue, on one rank
  std::vector<std::pair<Layout, std::shared_ptr<const QueueCosts>>> queue_costs_;
};

struct LayoutChoice {
  // The chosen layout and the two next by their time; all fit in memory. Where none fits, the one
  // that needs the least memory.
  std::vector<Forecast> best;
  int too_large = 0;  // faster layouts than the last of `best` that do not fit
  int simulated = 0;  // layouts that could be among them by the time of one rank alone
};
// Chooses the fastest layout that fits, without simulating those that cannot be it. Of those that
// take at most kAlike times as long, the first of `layouts` wins, so that small differences between
// measured rates do not change the choice. `layouts` differ in their axes, and must not be empty.
// Each gets the text_ranks and vae_ranks with which it is the fastest and fits. Its own stay where
// others would make the job hardly faster (kStageGain).
inline constexpr double kAlike = 1.03, kStageGain = 1.01;
LayoutChoice choose_layout(const PlannedJob& given, std::span<const Layout> layouts);

}  // namespace weft
