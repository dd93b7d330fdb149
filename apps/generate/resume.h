#pragma once
// --resume: the flags and the jobs of a command that was interrupted, and the command that
// continues it.
#include <span>
#include <string>
#include <vector>

#include "apps/command_line/flags.h"
#include "apps/generate/request_flags.h"
#include "engine/parts/ranks.h"
#include "engine/runner/earlier_run.h"
#include "io/json.h"

namespace weft {

// Returns `flags` where --resume is auto or never. Where it names a checkpoint (or the output
// beside it), returns the flags of the command that wrote it, but for those that the records of its
// jobs state; flags of this command line take precedence. Error(kUsage) where there is nothing to
// resume.
Flags flags_to_resume(const Flags& flags, std::span<const std::string> arguments);
// The jobs of those flags. Where --resume names a checkpoint, these are all jobs of the command
// that wrote it, with the flags of this command line on top. Error(kUsage).
std::vector<GivenJob> jobs_to_draw(const Flags& flags);

// The flags of a command that its checkpoints hold, {flag: value}, without those of the layout.
Json flags_to_keep(const Flags& flags);
// --resume and --overwrite.
ResumeRule resume_rule(const Flags& flags);
Latents kept_latents(const Flags& flags);  // --keep-latents

// "Resume: weft generate --resume a.checkpoint.safetensors"; empty where nothing was left.
std::string resume_advice(const Flags& flags, const Ranks& ranks, const OutputNames& names);

}  // namespace weft
