#pragma once
// weft plan for a model that draws streams alone.
#include <memory>

#include "apps/command_line/flags.h"
#include "engine/parts/components.h"

namespace weft {

// True where the model follows the signal of a face, which no video of a given length has.
bool draws_streams_alone(const ModelDirectory& model);

// Predicts the memory and the speed of the model's streams by simulation, on this machine's CPU or
// on a described device, and chooses a split that is left open. Returns the exit code.
int plan_stream(const Flags& flags, const std::shared_ptr<const OpenModel>& model);

}  // namespace weft
