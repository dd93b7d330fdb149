#pragma once
// Draws how ranks spend their time, as SVG.
#include <functional>
#include <string>

#include "parallel/schedule/plan_timing.h"

namespace weft {

// One bar per rank, cut into slices that are coloured by how their time was spent.
std::string timeline_svg(std::span<const SimulatedRank> ranks, const std::string& title);

// One bar per rank that shows when it computes forwards and when it decodes, and below it the
// beginning, the middle and the end at a scale at which every forward has its name. Forwards of one
// clip have one colour.
std::string plan_svg(std::span<const Plan> plans, std::span<const std::vector<StepTime>> times,
                     const std::string& title,
                     const std::function<std::string(const Pass& pass)>& name);

}  // namespace weft
