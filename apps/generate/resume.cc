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

// Warns of differences that may change the last bits of a result although the job is the same.
void warn_of_changes(const Flags& flags, const Checkpoint& left, const std::string& record) {
  const auto facts = [](const std::string& of, const std::string& version) {
    nlohmann::json engine = parse_json(of, "the record of a job").at("engine");
    engine["engine"] = version;
    return engine;
  };
  const auto made = left.notes.find("engine");
  const nlohmann::json here = facts(record, version_text()),
                       there = facts(left.job, made == left.notes.end() ? "" : made->second);
  for (const char* name : {"engine", "isa", "threads", "layout"}) {
    const auto before = there.find(name);
    if (before == there.end() || *before == here.at(name) || *before == "") continue;
    if (std::string(name) == "threads" && flags.on("deterministic")) continue;
    const auto shown = [](const nlohmann::json& value) {
      return value.is_string() ? value.get<std::string>() : value.dump();
    };
    std::fprintf(
        stderr,
        "weft: warning: resumed with %s %s, begun with %s: the last bits of the result may "
        "differ from those of an uninterrupted run\n",
        name, shown(here.at(name)).c_str(), shown(*before).c_str());
  }
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

std::vector<std::string> files_left(const OutputNames& names) {
  std::vector<std::string> files{names.latents, names.checkpoint,
                                 older_checkpoint(names.checkpoint)};
  std::error_code ignored;  // a name that is too long is one that is not there
  std::erase_if(files, [&](const std::string& path) { return !fs::exists(path, ignored); });
  return files;
}

void adopt_older(const std::string& path) {
  const OutputNames names = output_names(path), older = older_names(path);
  if (!files_left(names).empty()) return;
  for (const auto& [from, to] :
       {std::pair{older.latents, names.latents},
        {older.checkpoint, names.checkpoint},
        {older_checkpoint(older.checkpoint), older_checkpoint(names.checkpoint)}}) {
    std::error_code ignored;
    if (!fs::exists(from, ignored)) continue;
    try {
      for (const nlohmann::json& job : parse_json(read_checkpoint(from).notes["jobs"], from))
        if (is_record_of(path, job.at("output").get<std::string>()))
          return fs::rename(from, to, ignored);
    } catch (const std::exception&) {
      continue;  // not whole: of no use under any name
    }
  }
}

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

std::shared_ptr<Checkpoint> left_by_earlier_run(const Flags& flags, const Generator& generator,
                                                const Request& request, const OutputNames& names) {
  if (flags.text("resume") == "never") return nullptr;
  const std::string advice = "; --resume never starts over, another --output keeps the checkpoint";
  std::string faults;
  for (const std::string& path : files_left(names)) {
    std::shared_ptr<Checkpoint> left;
    try {
      left = std::make_shared<Checkpoint>(read_checkpoint(path));
    } catch (const Error& error) {
      faults += (faults.empty() ? "" : "; ") + std::string(error.what());
      std::fprintf(stderr, "weft: warning: %s\n", printable(error.what()).c_str());
      continue;
    }
    const std::string record = generator.job_record(request);
    const std::string differs = difference(left->job, record);
    if (differs.empty()) {
      if (informative(flags))
        std::fprintf(stderr, "weft: resuming after step %d of %d, from %s\n", left->step,
                     left->total, printable(path).c_str());
      warn_of_changes(flags, *left, record);
      return left;
    }
    if (flags.on("overwrite") && (flags.command() == kBatch || flags.text("resume") == "auto"))
      return nullptr;
    throw Error(ErrorKind::kUsage, path + " belongs to another job: " + differs + advice);
  }
  if (faults.empty() || flags.on("overwrite")) return nullptr;
  throw Error(ErrorKind::kUsage, "no checkpoint of this job is whole: " + faults + advice);
}

namespace {

// The newest readable checkpoint that an interrupted run left. What is wrong with others is told
// when the job is resumed.
std::optional<Checkpoint> checkpoint_left(const Flags& flags, const OutputNames& names) {
  if (flags.text("resume") == "never") return std::nullopt;
  for (const std::string& path : files_left(names)) {
    try {
      return read_checkpoint(path);
    } catch (const Error&) {
      continue;
    }
  }
  return std::nullopt;
}

// A value of the record of the job that was left, by its place; null where there is none.
nlohmann::json left_value(const Flags& flags, const OutputNames& names, const std::string& place) {
  const std::optional<Checkpoint> left = checkpoint_left(flags, names);
  if (!left) return nullptr;
  const auto record = nlohmann::json::parse(left->job, nullptr, false);
  const nlohmann::json::json_pointer pointer(place);
  return record.is_object() && record.contains(pointer) ? record.at(pointer) : nullptr;
}

}  // namespace

std::vector<GivenJob> jobs_to_draw(const Flags& flags) {
  if (!names_checkpoint(flags)) return jobs_of(flags);
  const std::string resume = flags.text("resume");
  const auto refuse = [&](const std::string& flag, const std::string& legal) {
    throw Error(ErrorKind::kUsage, flags.label(flag) + " is '" + flags.text(flag) +
                                       "', but --resume " + resume + " states the " + legal);
  };
  if (flags.typed("prompt-file")) refuse("prompt-file", "jobs; legal: one of the two");
  std::optional<Checkpoint> left = checkpoint_left(flags, names_of_left(resume));
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

std::optional<uint64_t> seed_left(const Flags& flags, const OutputNames& names) {
  const nlohmann::json seed = left_value(flags, names, "/request/seed");
  return seed.is_number_unsigned() ? std::optional(seed.get<uint64_t>()) : std::nullopt;
}

std::string layout_left(const Flags& flags, const OutputNames& names,
                        std::span<const Layout> legal) {
  const nlohmann::json layout = left_value(flags, names, "/engine/layout");
  const bool known = std::ranges::any_of(legal, [&](const Layout& one) {
    for (const Layout& text : with_stage_ranks(one, &Layout::text_ranks))
      for (const Layout& both : with_stage_ranks(text, &Layout::vae_ranks))
        if (to_string(both) == layout) return true;
    return false;
  });
  return known ? layout.get<std::string>() : "";
}

std::map<std::string, std::string> resume_notes(const Flags& flags, const Generator& generator,
                                                std::span<const Drawing> drawings) {
  Json given = Json::object();
  for (const auto& [name, value] : flags.values())
    if (value.second != "default" && !kNotStored.count(name) && !is_recorded(name))
      given[name] = anywhere(*find_flag(flags.command(), name), value.first);
  if (const std::string layout = layout_text(flags); layout != "auto") {
    for (int axis = 0; axis < kAxes; ++axis) given.erase(flag_of_axis(static_cast<Axis>(axis)));
    for (const char* stage : {"text-ranks", "vae-ranks", "decode-rank"}) given.erase(stage);
    given["layout"] = layout;
  }
  Json jobs = Json::array();
  for (const auto& [spec, path] : drawings)
    jobs.push_back(
        {{"request", request_record(generator, spec)}, {"output", path_text(absolute(path))}});
  return {{"engine", version_text()}, {"given", given.dump()}, {"jobs", jobs.dump()}};
}

void drop_leftovers(const Flags& flags, const OutputNames& names) {
  remove_checkpoints(names.checkpoint);
  if (!flags.on("keep-latents")) std::filesystem::remove(names.latents);
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
