#pragma once
// One conformance case under one layout: what `weft verify` prints and the tests assert.
#include "apps/verify_stages.h"

namespace weft {

// Runs the case on `ranks` threads and compares with its expected tensors, a row each. Where the
// data axis makes several replicas, each runs it and the worst of them counts. Error(kUsage) for a
// layout that is not legal for the case, Error(kModel) for a malformed case or weights.
std::vector<VerifyRow> verify_case(const std::string& folder, const VerifyOptions& options,
                                   int ranks = 1, const std::string& layout = "auto");

}  // namespace weft
