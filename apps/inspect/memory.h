#pragma once
// Predicts the memory of a job, stage by stage, before anything is loaded.
#include <string>

#include "apps/command_line/flags.h"
#include "engine/generation/generator.h"
#include "io/json.h"

namespace weft {

// "auto, it fits: all resident", for run headers.
std::string mode_text(const GeneratorOptions& options, const MemoryPlan& plan);
// The same as fields of a plan's JSON: "mode", "mode_reason", "resident_layers", "weights".
void describe_mode(const GeneratorOptions& options, const MemoryPlan& plan, Json& object);

// Adds the fields that only plans for GPUs have to a plan's JSON: "scratch_bytes" of single ops,
// and "host": {"pinned_bytes", "bytes"}. Adds nothing for a CPU.
void describe_device_memory(const MemoryPlan& plan, Json& object);

// weft inspect MODEL --memory FRAMESxHEIGHTxWIDTH: prints the plan of such a clip, for --prompt or
// the longest prompt that the model reads.
void inspect_memory(const Flags& flags, const std::string& model);

}  // namespace weft
