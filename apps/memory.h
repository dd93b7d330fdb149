#pragma once
// What a job will hold in memory, stage by stage, before anything of it is loaded.
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "apps/flags.h"
#include "engine/generator.h"

namespace weft {

// Of the first rank, which holds no less than the others; the one door to predictions.
MemoryPlan plan_of_rank(const std::string& model, const GeneratorOptions& options, Layout layout,
                        const Request& request);

// What a plan for a device knows beside, into the plan's JSON: "scratch_bytes" of single ops, and
// "host": {"pinned_bytes", "bytes"}. Nothing for a CPU.
void describe_device_memory(const MemoryPlan& plan, nlohmann::json& object);

// weft inspect MODEL --memory FRAMESxHEIGHTxWIDTH: prints the plan of such a clip, for --prompt or
// the longest one that the model reads.
void inspect_memory(const Flags& flags, const std::string& model);

}  // namespace weft
