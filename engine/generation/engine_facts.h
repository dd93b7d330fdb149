#pragma once
// The facts of a job's record that the engine adds to the request.

#include "engine/job/options.h"
#include "engine/parts/open_model.h"
#include "io/json.h"

namespace weft {

// Everything beside the request on which the bits of a job's frames may depend.
Json engine_facts(const GeneratorOptions& options, const OpenModel& model, const Layout& layout);

}  // namespace weft
