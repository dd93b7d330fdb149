#pragma once
// The part of `weft plan` that is about the segment queue: slots, idle slots, links and frames.
#include <string>

#include "engine/planning/forecast.h"
#include "io/json.h"

namespace weft {

void print_queue(const QueueTimeline& timeline, const Forecast& forecast);
// {"blocks", "steps", "stages", "first_frame_seconds", "idle_slots", "links", "slots"}
Json to_json(const QueueTimeline& timeline, const Forecast& forecast);
std::string svg_of(const QueueTimeline& timeline, const std::string& title);

}  // namespace weft
