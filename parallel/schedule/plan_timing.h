#pragma once
// Times plans as data: nothing runs, so a plan of many thousand steps takes milliseconds. Messages
// take the time that they take in a simulation (parallel/schedule/simulate.h).
#include <functional>
#include <span>
#include <vector>

#include "parallel/schedule/plan.h"
#include "parallel/schedule/simulate.h"

namespace weft {

struct StepTime {
  double begin_s = 0, end_s = 0;
};

// Returns the times of every rank's steps, in their order. `seconds` is what a rank's step takes
// that is no message. Ranks of one number in `groups` begin a forward together, but one that
// reuses rows; empty: each on its own. Steps that wait for what never comes, and those after them,
// are left out.
std::vector<std::vector<StepTime>> time_plans(
    std::span<const Plan> plans, const DeviceModel& device, const Link& link,
    const std::function<double(const Step& step, int rank)>& seconds,
    const std::vector<int>& groups = {});

}  // namespace weft
