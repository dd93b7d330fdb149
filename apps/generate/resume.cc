#include "apps/generate/resume.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/command_line/placement.h"
#include "apps/command_line/printable.h"
#include "apps/commands.h"
#include "apps/device.h"
#include "apps/generate/progress.h"
#include "apps/model_folder.h"
#include "engine/runner/result_files.h"
#include "io/json.h"
#include "io/text/utf8.h"
#include "io/weights/tensor_file.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

// A checkpoint stores neither the flags that say how results are shown, which the new command line
// decides, nor those whose values are stored under the flags that they set. Its records of jobs
// state the prompts and the outputs.
const std::set<std::string> kNotStored = {
    "config",    "gpus",      "print-config", "dry-run",   "json",  "progress",    "verbose",
    "log-level", "quiet",     "resume",       "profile",   "trace", "prompt-file", "output",
    "preset",    "transport", "nodes",        "node-rank", "port"};
const std::set<std::string> kModels = {"model", "expand-prompt"};

std::string absolute(const std::string& path) { return fs::absolute(path).string(); }

// Returns whether the flag gives a file for a part of the model.
bool is_part(const std::string& flag) {
  return std::ranges::any_of(kParts, [&](const auto& part) { return flag == flag_of(part.first); });
}

// The value of a flag as a record has it, made independent of the working folder.
std::string anywhere(const FlagSpec& spec, const std::string& value) {
  const std::string name = spec.name;
  if (name == "lora") return to_string(parse_loras(recorded_value(&spec, value), name));
  if (is_part(name)) return path_text(fs::absolute(value).lexically_normal().string());
  const bool is_model = kModels.count(name) && value != "auto";
  return recorded_value(&spec, is_model ? absolute(find_model(value)) : value);
}

// `path` is one of those files or the output.
OutputNames names_of_left(const std::string& path) {
  for (const char* ending :
       {".latents.safetensors", ".checkpoint.old.safetensors", ".checkpoint.safetensors"})
    if (path.ends_with(ending))
      return OutputNames(path.substr(0, path.size() - std::string(ending).size()));
  if (!path.ends_with('/') && fs::path(path).extension().empty())
    throw Error(ErrorKind::kUsage,
                "--resume is '" + path + "', legal: auto, never, or a checkpoint file");
  const OutputNames names = output_names(path);
  return files_left(names).empty() ? older_names(path) : names;
}

bool names_checkpoint(const Flags& flags) {
  return flags.text("resume") != "auto" && flags.text("resume") != "never";
}

// True where the record of a job states what the flag gives. The LoRAs and the files of parts are
// needed before it is read, to open the model.
bool is_recorded(const std::string& flag) {
  return flag != "output" && flag != "lora" && !is_part(flag) &&
         std::ranges::any_of(job_fields(),
                             [&](const JobField& field) { return flag == flag_of(field.name); });
}

}  // namespace

Flags flags_to_resume(const Flags& flags, std::span<const std::string> arguments) {
  if (!names_checkpoint(flags)) return flags;
  const std::string resume = flags.text("resume");
  std::string faults;
  for (const std::string& path : files_left(names_of_left(resume))) {
    nlohmann::json stored;
    try {
      stored = parse_json(read_checkpoint(path).notes["given"], path);
    } catch (const Error& error) {
      faults += std::string("; ") + error.what();
      continue;
    }
    StoredFlags left{.values = {}, .origin = path};
    for (const auto& [name, value] : stored.items()) {
      const FlagSpec* spec = find_flag(flags.command(), name);
      if (!spec || flags.typed(spec->name) || is_recorded(spec->name)) continue;
      left.values[spec->name] = value_of_record(spec, value.get<std::string>());
    }
    return Flags::parse(flags.command(), arguments, left);
  }
  throw Error(ErrorKind::kUsage,
              "--resume is '" + resume + "', but no whole checkpoint is there" + faults);
}

std::vector<GivenJob> jobs_to_draw(const Flags& flags) {
  if (!names_checkpoint(flags)) return jobs_of(flags);
  const std::string resume = flags.text("resume");
  const auto refuse = [&](const std::string& flag, const std::string& legal) {
    throw Error(ErrorKind::kUsage, flags.label(flag) + " is '" + flags.text(flag) +
                                       "', but --resume " + resume + " states the " + legal);
  };
  if (flags.typed("prompt-file")) refuse("prompt-file", "jobs; legal: one of the two");
  std::optional<Checkpoint> left = checkpoint_left(resume_rule(flags), names_of_left(resume));
  CHECK(left, resume, " is gone");
  std::vector<GivenJob> jobs;
  for (const nlohmann::json& recorded : parse_json(left->notes["jobs"], left->path)) {
    GivenJob& job = jobs.emplace_back(recorded_job(flags, recorded.at("request"), left->path));
    if (flags.typed("output")) continue;
    job.path = path_of_text(recorded.at("output").get<std::string>());
    const bool as_pictures = flags.text("frames") == "png";
    if (!job.path.empty() && flags.typed("frames") && as_pictures != job.path.ends_with('/'))
      refuse("frames", "output " + job.path + "; legal: another --output, or no --frames");
  }
  return jobs;
}

Json flags_to_keep(const Flags& flags) {
  Json given = Json::object();
  for (const auto& [name, value] : flags.values())
    if (value.second != "default" && !kNotStored.count(name) && !is_recorded(name))
      given[name] = anywhere(*find_flag(flags.command(), name), value.first);
  for (int axis = 0; axis < kAxes; ++axis) given.erase(flag_of_axis(static_cast<Axis>(axis)));
  for (const char* stage : {"layout", "text-ranks", "vae-ranks", "decode-rank"}) given.erase(stage);
  return given;
}

ResumeRule resume_rule(const Flags& flags) {
  return {.never = flags.text("resume") == "never",
          .overwrite = flags.on("overwrite"),
          .named = flags.command() != kBatch && flags.text("resume") != "auto"};
}

Latents kept_latents(const Flags& flags) {
  return flags.on("keep-latents") ? Latents::kKeep : Latents::kRemove;
}

std::string resume_advice(const Flags& flags, const Ranks& ranks, const OutputNames& names) {
  const std::vector<std::string> files = files_left(names);
  if (files.empty()) return "";
  if (flags.command() == kBatch) return "The same command goes on from there";
  const std::string start = ranks.mpi ? "mpirun -n " + std::to_string(ranks.count) + " " : "";
  return "Resume" + (ranks.processes && !ranks.mpi ? " as " + ranks.description : "") + ": " +
         start + shell_word(program_name()) + " generate --resume " + shell_word(files.front());
}

}  // namespace weft
