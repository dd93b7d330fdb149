#pragma once
// --resume: what an interrupted job has left beside its output, and the command that goes on from
// it.
#include <memory>
#include <string>
#include <vector>

#include "apps/flags.h"
#include "apps/sidecar.h"
#include "engine/generator.h"

namespace weft {

struct Ranks;

// `flags` where --resume is auto or never. Where it names a file that a job has left (or its
// output), the flags of that job, with those of this command line before them. Error(kUsage) where
// there is nothing to resume.
Flags flags_to_resume(const Flags& flags, std::span<const std::string> arguments);

// What `names` have left that is whole, the furthest first: latents, checkpoint, the one before.
// Null where there is nothing or --resume is never. Error(kUsage) where all of it is damaged or of
// another job, unless --overwrite lets the job start over. Says on standard error what it found.
std::shared_ptr<Checkpoint> left_by_earlier_run(const Flags& flags, const Generator& generator,
                                                const Request& request, const OutputNames& names);

// The seed of what was left at `names`, for a job whose user gave none.
std::optional<uint64_t> seed_left(const Flags& flags, const OutputNames& names);

// How the job was started: for a checkpoint's notes. `output`: where its result goes, or the
// pattern of several.
std::map<std::string, std::string> resume_notes(const Flags& flags, const Generator& generator,
                                                const std::string& output, uint64_t seed);

// "Resume: weft generate --resume a.checkpoint.safetensors"; empty where nothing was left.
std::string resume_advice(const Ranks& ranks, const OutputNames& names);

// True where the result at `path` is whole and its sidecar says that it is this job's.
bool complete(const Generator& generator, const Request& request, const std::string& path,
              const OutputNames& names);

}  // namespace weft
