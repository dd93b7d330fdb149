#pragma once
// The checker of plans. It proves, for the plans of all ranks:
// - There is no deadlock, even where a send ends only when its receive has been posted
// (rendezvous).
// - Every slot is written before it is read, and holds the version that the reader declares. What
//   is computed is read. A version is at most as many turns old as its reader and the rules allow.
// - No slot is written while a send reads it, nor used while a receive is posted into it.
// - Sends and receives match in order, in peer, payload, pass, tokens, version and bytes: the k-th
//   send from one rank to another meets the k-th receive, so the messages need no tags, and pairs
//   of ranks whose devices take them up one after the other wait for each other in no circle.
// - A message has the bytes of the schedule's formula.
// - A forward runs with its expert loaded, on rows that have passed the blocks before its own.
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "parallel/schedule/plan.h"

namespace weft {

struct PlanRules {
  std::function<int64_t(const Step& message)> bytes{};  // the formula; empty: it is not checked
  int stale = 0;                                        // the most turns that a read may be old
  int experts = 1;  // how many may be loaded at once; one more takes the place of the first
};

// Returns a description of the first fault, or nullopt where the plans are sound.
std::optional<std::string> check_plans(std::span<const Plan> plans, const PlanRules& rules = {});
// Throws an internal error with that description. Where a run plans window by window, its plans are
// those of a run of the same configuration that ends, and is long enough to fill the ranks.
void require_sound(std::span<const Plan> plans, const PlanRules& rules);

// Says in one line what check_plans proves of sound plans.
std::string proof_of(std::span<const Plan> plans, const PlanRules& rules = {});

}  // namespace weft
