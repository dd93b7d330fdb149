#pragma once
// The split of a stream over its ranks.
#include <memory>
#include <optional>
#include <string>

#include "apps/command_line/flags.h"
#include "engine/planning/stream_forecast.h"
#include "engine/session/stream_engine.h"

namespace weft {

struct StreamSplit {
  std::unique_ptr<StreamEngine> engine;
  std::optional<StreamForecast> forecast;  // where the speed was measured on this machine
  std::string memory;                      // FreeMemory::shown()
};

// The engine of a stream on so many ranks. A layout that is left open is chosen by forecasts from
// what a block takes on one rank here, among those that fit into the memory. Under --live and
// --dry-run the speed is always measured; a live stream that cannot keep up is an Error(kUsage)
// that offers fewer steps and smaller sizes.
StreamSplit choose_split(const Flags& flags, int ranks,
                         const std::shared_ptr<const OpenModel>& model,
                         const StreamSettings& settings, const std::string& caption);

}  // namespace weft
