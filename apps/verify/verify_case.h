#pragma once
// Runs one conformance case under one layout, for `weft verify` and the tests.
#include "apps/device.h"
#include "apps/verify/verify_stages.h"

namespace weft {

// Runs the case on the ranks and returns a row per expected tensor; nothing in a process that does
// not hold rank 0. Where the data axis makes several replicas of threads, each runs the case and
// the worst result counts. Error(kUsage) for a layout that is not legal for the case, Error(kModel)
// for a malformed case or weights.
std::vector<VerifyRow> verify_case(const std::string& folder, const VerifyOptions& options,
                                   const Ranks& ranks = {}, const std::string& layout = "auto");

// The same as one rank of a replica, whose root has the rows.
std::vector<VerifyRow> verify_rank(const std::string& folder, const VerifyOptions& options,
                                   RankPlacement placement);

}  // namespace weft
