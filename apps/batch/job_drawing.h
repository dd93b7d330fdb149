#pragma once
// A job of a file or of a server as a drawing: its whole request, and the file of its result.
#include <string>

#include "apps/generate/request_flags.h"
#include "engine/runner/sidecar.h"

namespace weft {

struct PlacedJob {
  Drawing drawing{};
  std::string hash{};  // job_hash()
};

// The name of the job for messages, the folder of results, which ends in /, and the job's number.
struct JobPlace {
  std::string where, folder;
  int index = 0;
};

// Completes a job, whose files have been read (take_facts), with the model's defaults. One without
// a seed gets that of its id; one without an output is {id}.png or {id}.mp4 in the folder.
// Error(kUsage) that begins with the job's name, or that names a field.
PlacedJob placed_job(const GivenJob& job, const Generator& generator, const JobPlace& place);

}  // namespace weft
