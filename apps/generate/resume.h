#pragma once
// --resume: the files that an interrupted job leaves beside its output, and the command that
// continues it.
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "apps/command_line/flags.h"
#include "apps/generate/request_flags.h"
#include "apps/generate/sidecar.h"
#include "engine/generation/generator.h"

namespace weft {

struct Ranks;

// The files that an interrupted job has left at `names`; the one with the most work done comes
// first.
std::vector<std::string> files_left(const OutputNames& names);

// Renames what an earlier version has left of an interrupted job of the output `path`, under
// older_names(), to today's names.
void adopt_older(const std::string& path);

// Returns `flags` where --resume is auto or never. Where it names a checkpoint (or the output
// beside it), returns the flags of the command that wrote it, but for those that the records of its
// jobs state; flags of this command line take precedence. Error(kUsage) where there is nothing to
// resume.
Flags flags_to_resume(const Flags& flags, std::span<const std::string> arguments);
// The jobs of those flags. Where --resume names a checkpoint, these are all jobs of the command
// that wrote it, with the flags of this command line on top. Error(kUsage).
std::vector<GivenJob> jobs_to_draw(const Flags& flags);

// The first whole file among latents, checkpoint and the checkpoint before. Null where there is
// none or --resume is never. Error(kUsage) where all are damaged or belong to another job, unless
// --overwrite lets the job start over. Standard error says what was found.
std::shared_ptr<Checkpoint> left_by_earlier_run(const Flags& flags, const Generator& generator,
                                                const Request& request, const OutputNames& names);

// The seed of an interrupted job at `names`, for a job whose user gave none.
std::optional<uint64_t> seed_left(const Flags& flags, const OutputNames& names);
// The layout of an interrupted job at `names` if it is one of `legal`, else "".
std::string layout_left(const Flags& flags, const OutputNames& names,
                        std::span<const Layout> legal);

// The notes of a checkpoint: the flags of its command, and the records of the jobs that a resume by
// its name draws.
std::map<std::string, std::string> resume_notes(const Flags& flags, const Generator& generator,
                                                std::span<const Drawing> drawings);

// Removes the files that only a running job needs. This comes after the sidecar: a job that is
// killed before it can be resumed, and one that is killed after it is complete; the next run of the
// same command tidies up.
void drop_leftovers(const Flags& flags, const OutputNames& names);

// "Resume: weft generate --resume a.checkpoint.safetensors"; empty where nothing was left.
std::string resume_advice(const Flags& flags, const Ranks& ranks, const OutputNames& names);

}  // namespace weft
