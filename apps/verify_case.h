#pragma once
// One conformance case under one layout: what `weft verify` prints and the tests assert.
#include "apps/device.h"
#include "apps/verify_stages.h"

namespace weft {

// Runs the case on the ranks and compares with its expected tensors, a row each; empty in a process
// that does not hold rank 0. Where the data axis makes several replicas of threads, each runs it
// and the worst of them counts. Error(kUsage) for a layout that is not legal for the case,
// Error(kModel) for a malformed case or weights.
std::vector<VerifyRow> verify_case(const std::string& folder, const VerifyOptions& options,
                                   const Ranks& ranks = {}, const std::string& layout = "auto");

}  // namespace weft
