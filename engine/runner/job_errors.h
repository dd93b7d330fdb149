#pragma once
// The errors of jobs that several ranks draw together.
#include <exception>
#include <functional>

#include "engine/parts/rank_placement.h"
#include "kernels/check.h"

namespace weft {

// Returns the exception that is being handled as an Error.
Error current_error();

// Calls check() on every rank of a replica, which all call this. Returns on the root what the first
// of them throws, as an Error that names a rank other than the root.
std::exception_ptr why_not_begun(const RankPlacement& placement,
                                 const std::function<void()>& check);

}  // namespace weft
