#pragma once
// The JSON sidecar beside a result, and the metadata inside it.
#include <map>
#include <string>

#include "engine/generation/generator.h"
#include "engine/job/job_spec.h"
#include "io/json.h"
#include "io/part_file.h"

namespace weft {

struct Finished;

// RecordRules holds the facts that records of results state beside their jobs.
struct RecordRules {
  Json given = Json::object();  // {flag: {"value", "origin"}}: the settings as they were given
  std::string version{};        // of the program
  bool without_prompts = false;
  bool without_folders = false;  // inside results, which strangers receive; sidecars have all
};

// A job to draw: its resolved request, and the path of its result.
struct Drawing {
  JobSpec spec;
  std::string path;
};

// The request of a resolved job's record (job_spec.h), with the job's id and its first prompt.
nlohmann::json request_record(const Generator& generator, const JobSpec& job);

// {"tokens", "read", "lost"}
Json to_json(const PromptCut& cut);
// The warning of the cut of a text, which is called "prompt" or the like.
std::string cut_warning(const std::string& text, const PromptCut& cut);

// {"setting": .., "skipped": .., "steps": [{"skipped", "embedding_change", "output_change",
// "error"}, ..]} of a step cache. The queue measures no output_change.
Json cache_json(const RunResult& result);

// Keys "parameters" (A1111 form) and "weft" (JSON, schema weft.params/v1) for
// VideoSettings::metadata.
std::map<std::string, std::string> embedded_metadata(const RecordRules& rules,
                                                     const Generator& generator,
                                                     const JobSpec& job);

// Writes the request as given and as resolved, engine, weights hash, seconds per stage, memory
// peaks and framehash; and where they are there the uploads, the profile and the prompt's cut.
void write_sidecar(const std::string& path, const RecordRules& rules, const Generator& generator,
                   const Finished& done, Overwrite overwrite);

// True where the result is whole and its sidecar names this very job.
bool complete(const Generator& generator, const Drawing& drawing);

}  // namespace weft
