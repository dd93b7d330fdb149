#pragma once
// The JSON sidecar beside a result, and the metadata inside it.
#include <map>
#include <string>

#include "apps/command_line/flags.h"
#include "engine/generation/generator.h"
#include "engine/job/job_spec.h"
#include "io/json.h"
#include "io/part_file.h"

namespace weft {

struct Finished;

// A job to draw: its resolved request, and the path of its result.
struct Drawing {
  JobSpec spec;
  std::string path;
};

// The other files of a result at `path`: outputs/a.mp4 has outputs/a.mp4.json,
// outputs/a.mp4.latents.safetensors and outputs/a.mp4.checkpoint.safetensors; frames/ has
// frames.json, ...
struct OutputNames {
  explicit OutputNames(const std::string& stem)
      : sidecar(stem + ".json"),
        latents(stem + ".latents.safetensors"),
        checkpoint(stem + ".checkpoint.safetensors") {}
  std::string sidecar, latents, checkpoint;
};
OutputNames output_names(const std::string& path);
// The names that earlier versions gave them, without the ending: outputs/a.json.
OutputNames older_names(const std::string& path);
// True where a record of such a name, which states the output `recorded`, belongs to `path`.
bool is_record_of(const std::string& path, const std::string& recorded);
// The sidecar's name; the older one where that file alone is there and belongs to the result.
std::string sidecar_path(const std::string& path);

// The request of a resolved job's record (job_spec.h), with the job's id and its first prompt.
nlohmann::json request_record(const Generator& generator, const JobSpec& job);

// {"tokens", "read", "lost"}
Json to_json(const PromptCut& cut);

// {"setting": .., "skipped": .., "steps": [{"skipped", "embedding_change", "output_change",
// "error"}, ..]} of a step cache. The queue measures no output_change.
Json cache_json(const RunResult& result);

// Keys "parameters" (A1111 form) and "weft" (JSON, schema weft.params/v1) for
// VideoSettings::metadata.
std::map<std::string, std::string> embedded_metadata(const Flags& flags, const Generator& generator,
                                                     const JobSpec& job);

// Writes the request as given and as resolved, engine, weights hash, seconds per stage, memory
// peaks and framehash; and where they are there the uploads, the profile and the prompt's cut.
void write_sidecar(const std::string& path, const Flags& flags, const Generator& generator,
                   const Finished& done, Overwrite overwrite);

// The sidecar of a result at `path`; null where there is none that can be read.
Json sidecar_of(const std::string& path);
// True where the result is whole and its sidecar names this very job.
bool complete(const Generator& generator, const Drawing& drawing);

}  // namespace weft
