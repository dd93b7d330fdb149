#pragma once
// The split of a stream over its ranks.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/memory/memory_plan.h"
#include "engine/session/stream_measure.h"

namespace weft {

// A stream that is not drawn yet.
struct PlannedStream {
  std::shared_ptr<const OpenModel> model;
  StreamSettings settings;  // of one rank, where the split is left open
  std::string caption{};
  int ranks = 1;
  Communicator* world = nullptr;  // of ranks that are processes

  bool is_open() const { return ranks > settings.layout.ranks() + settings.decodes_apart; }
  double fps() const { return model->directory.defaults.stream->fps; }
  std::unique_ptr<StreamEngine> engine(const StreamSettings& how) const {
    return std::make_unique<StreamEngine>(model, how, world);
  }
};

// Measures, or simulates, a stream under other settings.
using TimeStream = std::function<StreamMeasurement(const StreamSettings& how)>;

// The settings of the best split of a stream whose split is left open, among those that fit into
// the memory, and what is forecast of it. `one` is measured on one rank.
struct BestSplit {
  StreamSettings settings;
  StreamForecast forecast;
};
BestSplit best_split(const PlannedStream& stream, const StreamMeasurement& one,
                     const TimeStream& time);

// Error(kMemory) where a device's memory does not do, with what needs less.
void check_memory(const std::vector<MemoryPlan>& devices);

struct StreamSplit {
  std::unique_ptr<StreamEngine> engine;
  std::optional<StreamForecast> forecast;  // where the speed was measured on this machine
  std::vector<MemoryPlan> memory;          // of the devices
};

// A stream that is drawn as fast as it can be, one whose speed is asked for, and a live one, whose
// pictures are due at their time.
enum class Pace : uint8_t { kAny, kMeasured, kLive };

// The engine of a stream. A split that is left open is chosen by forecasts from what a segment
// takes on one rank here. A live stream that cannot keep up is an Error(kUsage) that offers fewer
// steps and smaller sizes.
StreamSplit choose_split(Pace pace, const PlannedStream& stream);

}  // namespace weft
