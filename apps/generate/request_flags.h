#pragma once
// The flags that say what to draw, as jobs, and those that say how to compute it, as options.
#include <optional>
#include <string>
#include <vector>

#include "apps/command_line/flags.h"
#include "apps/device.h"
#include "engine/generation/generator.h"
#include "engine/job/job_spec.h"

namespace weft {

// A job, and how messages name its fields: as flags, or as fields of a line.
struct GivenJob {
  JobSpec spec;
  FieldLabel label;
  std::string model;             // the model that the line names, or ""
  std::string path{};            // of its result; "": --output names it
  std::optional<bool> expand{};  // that a line states (take_expand_prompt)
};

// The flag of a field of a job.
std::string flag_of(std::string field);
// The flag's text: as it stands, the contents of the file after '@', or standard input for "-".
std::string text_argument(const Flags& flags, const std::string& name);
// Standard input, without the line ends at its end.
std::string standard_input();
// --seed, or a random one of 32 bits. Error(kUsage).
uint64_t seed_of(const Flags& flags);

// A line of a file of prompts, from 1.
struct Line {
  int number;
  std::string text;
};
// The lines that are not empty and no comments (#). Error(kUsage) that names `flag` where the file
// cannot be read or has none.
std::vector<Line> lines_of(const Flags& flags, const std::string& flag, const std::string& path);
// --prompt, or the lines of --prompt-file. Error(kUsage) where there is none.
std::vector<std::string> prompts_of(const Flags& flags);

// Takes the field `expand_prompt` from the fields of a job, which no record has: it says whether a
// language model writes a caption from the prompt before the job is drawn. Error(kUsage).
std::optional<bool> take_expand_prompt(nlohmann::json& fields, const FieldLabel& label);
// read_job() with the names of solvers that --solver has.
void read_named_job(nlohmann::json fields, const FieldLabel& label, JobSpec& job);
// The job that the flags describe, without its prompt. No model is opened. Error(kUsage). `flags`
// must outlive the job.
GivenJob job_of(const Flags& flags);
// The same with the fields of a line on top: a prompt, a job in JSON, or an envelope of OpenAI's
// batches around one. `where` begins messages about the line.
GivenJob job_of(const Flags& flags, const Line& line, const std::string& where);
// The job of a record's request with the fields of this command line's arguments on top. `where`
// begins messages about the record. `flags` must outlive the job.
GivenJob recorded_job(const Flags& flags, const nlohmann::json& request, const std::string& where);
// The jobs of --prompt or --prompt-file. Error(kUsage).
std::vector<GivenJob> jobs_of(const Flags& flags);
// Reads the job's pictures and its sound in the first process and gives all of them the facts. What
// is wrong with a file is an Error in every process.
void take_facts(GivenJob& job, const Ranks& ranks);
// Reference pictures that lie elsewhere than when they were recorded have to be the same.
void keep_hashes(const std::vector<GivenPicture>& recorded, std::vector<GivenPicture>& moved);
// The request of a job for a model; fields that are left open stay open.
Request request_of(const Flags& flags, const GivenJob& job, const Generator& generator);

// The engine's name of a solver, from its name for --solver or in a conformance case.
std::string engine_solver(const std::string& name);

// The seconds between checkpoints; nullopt where none are written.
std::optional<double> checkpoint_seconds(const Flags& flags);
// --segment; nullopt where the result is one file. Error(kUsage).
std::optional<double> segment_seconds(const Flags& flags);
// The options of the generators that run a job on `ranks`.
GeneratorOptions options_of(const Flags& flags, const Ranks& ranks);
// The options of generators that plan a job for `device`, or for this CPU.
GeneratorOptions planning_options(const Flags& flags, int ranks,
                                  const std::optional<PlannedDevice>& device);
}  // namespace weft
