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
#include "parallel/schedule/simulate.h"

namespace weft {

// The machine that a job is simulated on. Every rank has such a device and such a link.
struct Machine {
  DeviceModel device;
  Link link;
  // For weights that every forward copies from the host or reads from the file, for one rank.
  double upload_bytes_per_s = 0;
};

struct PlannedJob {
  std::shared_ptr<const OpenModel> model;
  // The options of every rank, with metered_ops(). memory_limit is taken as it is, whatever memory
  // is free.
  GeneratorOptions options;
  Request request;  // resolved
  Machine machine;
  int64_t requests = 1;  // prompts, which the replicas of the data axis share

  JobFacts facts() const { return facts_of(*model, request); }
};

// The copying or reading of weights that do not stay on the device, per step, on the slowest rank.
struct Uploads {
  int64_t bytes = 0;
  double seconds = 0, hidden_s = 0;  // hidden_s overlaps with computing
};

struct Forecast {
  Layout layout;
  double seconds = 0;                                  // of all prompts
  double first_frame_s = 0;                            // of the queue, for the first prompt
  std::vector<std::pair<std::string, double>> stages;  // of one prompt
  Uploads uploads;
  std::vector<MemoryPlan> memory;    // per rank
  std::vector<SimulatedRank> ranks;  // of forecast_whole; empty otherwise

  double stage(const std::string& name) const;  // 0 where there is no such stage
  uint64_t high_water() const;                  // of the rank that needs the most memory
  bool fits() const;
};

// A simulated job computes nothing, so it need not fit in memory.
GeneratorOptions without_limits(GeneratorOptions options);

std::vector<MemoryPlan> memory_of(const PlannedJob& job, const Layout& layout);

// The uploads of a replica's step, each of whose forwards copies or reads so many bytes on one
// rank. Nothing of it is hidden yet.
Uploads uploads_of(const PlannedJob& job, const Layout& replica, int64_t forward_bytes);
// The bytes that a forward copies or reads, on the rank with the most of them.
int64_t streamed_by(std::span<const MemoryPlan> memory);

// The blocks of each expert.
std::vector<int> blocks_of(const OpenModel& model);

// Simulates every step and every chunk.
Forecast forecast_whole(const PlannedJob& job, const Layout& layout);

// Simulates the few steps, blocks and frames that stand for all (engine/job/shortened.h), and
// extends the times to the whole job, whose schedule repeats itself. What layouts have in common is
// simulated once. Leaves out the memory. The queue has a forecast of its
// own (engine/planning/queue_forecast.h).
class QueueForecast;
class QuickForecast {
 public:
  explicit QuickForecast(const PlannedJob& job);
  ~QuickForecast();
  Forecast operator()(const Layout& layout);
  // A forecast that is never slower: by the simulation of one rank that waits for no other, and for
  // the queue by a part of the work.
  Forecast at_least(const Layout& layout);

 private:
  struct Ends {  // seconds of the stages that depend on the number of ranks alone
    double text = 0, audio = 0, image = 0, decode = 0;
  };
  std::shared_ptr<const OpenModel> with_blocks(int blocks);
  const Ends& ends(const Layout& layout);
  Ends ends_of_clips(const Layout& layout, const std::shared_ptr<const OpenModel>& model);
  void draw(Communicator& world, const Layout& layout, int blocks, std::vector<double>& updated);
  double denoise_with(const Layout& layout, int blocks, bool alone);
  double denoise(const Layout& layout, bool alone);  // on all ranks, or on the first alone
  double least_denoise(Layout layout);
  Forecast with_denoise(const Layout& layout, double seconds);
  Forecast with_queue(const Layout& layout, Forecast replica);

  const PlannedJob& job_;
  std::unique_ptr<QueueForecast> queue_;  // where the method is the queue, which forecasts all
  JobFacts facts_;
  std::optional<TimeSample> sample_;                        // of other methods
  std::map<int, std::shared_ptr<const OpenModel>> models_;  // by their blocks
  std::map<int, Ends> ends_;                                // by the ranks of a replica
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
// measured rates do not change the choice. `layouts` must not be empty.
inline constexpr double kAlike = 1.03;
LayoutChoice choose_layout(const PlannedJob& given, std::span<const Layout> layouts);

}  // namespace weft
