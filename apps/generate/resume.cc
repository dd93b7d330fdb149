#include "apps/generate/resume.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/command_line/placement.h"
#include "apps/commands.h"
#include "apps/device.h"
#include "apps/generate/progress.h"
#include "apps/generate/request_flags.h"
#include "apps/model_folder.h"
#include "io/json.h"
#include "io/weights/tensor_file.h"
#include "kernels/ops.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

// A checkpoint stores neither the flags that say how results are shown, which the new command line
// decides, nor those whose values are stored under the flags that they set.
const std::set<std::string> kNotStored = {"config", "gpus",     "print-config", "dry-run",
                                          "json",   "progress", "verbose",      "log-level",
                                          "quiet",  "resume",   "profile",      "trace"};
const std::set<std::string> kModels = {"model", "expand-prompt"};

std::string absolute(const std::string& path) { return fs::absolute(path).string(); }

// The value of a flag, made independent of the working folder.
std::string anywhere(const std::string& name, const std::string& value) {
  if (name == "prompt-file") return absolute(value);
  return kModels.count(name) && value != "auto" ? absolute(find_model(value)) : value;
}

// The files that an interrupted job left at `names`; the one with the most work done comes first.
std::vector<std::string> files_left(const OutputNames& names) {
  std::vector<std::string> files{names.latents, names.checkpoint,
                                 older_checkpoint(names.checkpoint)};
  std::erase_if(files, [](const std::string& path) { return !fs::exists(path); });
  return files;
}

// `path` is one of those files or the output.
OutputNames names_of_left(const std::string& path) {
  for (const char* ending :
       {".latents.safetensors", ".checkpoint.old.safetensors", ".checkpoint.safetensors"})
    if (path.ends_with(ending))
      return output_names(path.substr(0, path.size() - std::string(ending).size()) + ".any");
  if (!path.ends_with('/') && fs::path(path).extension().empty())
    throw Error(ErrorKind::kUsage,
                "--resume is '" + path + "', legal: auto, never, or a checkpoint file");
  return output_names(path);
}

std::string quoted(const std::string& word) {
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) || std::string_view("/._-+=:,@%").find(char(c)) != std::string::npos;
  };
  if (!word.empty() && std::ranges::all_of(word, plain)) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

// Warns of differences that may change the last bits of a result although the job is the same.
void warn_of_changes(const Flags& flags, const std::map<std::string, std::string>& there,
                     const std::map<std::string, std::string>& here) {
  for (const char* name : {"engine", "isa", "threads", "layout"}) {
    const auto before = there.find(name), now = here.find(name);
    if (before == there.end() || now == here.end() || before->second == now->second) continue;
    if (std::string(name) == "threads" && flags.on("deterministic")) continue;
    std::fprintf(
        stderr,
        "weft: warning: resumed with %s %s, begun with %s: the last bits of the result may "
        "differ from those of an uninterrupted run\n",
        name, now->second.c_str(), before->second.c_str());
  }
}

std::map<std::string, std::string> place_notes(const Generator& generator) {
  return {{"engine", version_text()},
          {"isa", cpu_isa()},
          {"threads", std::to_string(generator.options().threads)},
          {"layout", to_string(generator.layout())}};
}

}  // namespace

namespace {

// True where the flag, or one that sets it, stands on the present command line.
bool is_on_command_line(const Flags& flags, const std::string& name) {
  const std::string origin = flags.origin(name);
  return origin == "flag" || origin.starts_with("--") || origin.starts_with("layout ");
}

// Earlier versions wrote frames into any --output that ends in /.
void translate_earlier_output(nlohmann::json& stored) {
  if (!stored.is_object() || !stored.contains("output") || !stored["output"].is_string()) return;
  std::string output = stored["output"];
  if (!output.ends_with('/')) return;
  output.pop_back();
  stored["output"] = output;
  stored["frames"] = "png";
}

}  // namespace

Flags flags_to_resume(const Flags& flags, std::span<const std::string> arguments) {
  const std::string resume = flags.text("resume");
  if (resume == "auto" || resume == "never") return flags;
  std::string faults;
  for (const std::string& path : files_left(names_of_left(resume))) {
    nlohmann::json stored;
    try {
      stored = parse_json(read_checkpoint(path).notes["given"], path);
    } catch (const Error& error) {
      faults += std::string("; ") + error.what();
      continue;
    }
    std::vector<std::string> all(arguments.begin(), arguments.end());
    translate_earlier_output(stored);
    for (const auto& [name, value] : stored.items()) {
      const FlagSpec* spec = find_flag(flags.command(), name);
      if (!spec || is_on_command_line(flags, spec->name)) continue;
      const std::string text = value.get<std::string>();
      if (spec->type != FlagType::kSwitch)
        all.push_back("--" + std::string(spec->name) + "=" + text);
      else if (text == "on" || text == "true" || text == "1")
        all.push_back("--" + std::string(spec->name));
    }
    return Flags::parse(flags.command(), all);
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
    left->facts["solver"] = engine_solver(left->facts["solver"]);
    const std::string differs = difference(left->facts, generator.job_facts(request));
    if (differs.empty()) {
      if (informative(flags))
        std::fprintf(stderr, "weft: resuming after step %d of %d, from %s\n", left->step,
                     left->total, path.c_str());
      warn_of_changes(flags, left->notes, place_notes(generator));
      return left;
    }
    if (flags.on("overwrite") && flags.text("resume") == "auto") return nullptr;
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

}  // namespace

std::optional<uint64_t> seed_left(const Flags& flags, const OutputNames& names) {
  std::optional<Checkpoint> left = checkpoint_left(flags, names);
  uint64_t seed = 0;
  const std::string text = left ? left->facts["seed"] : "";
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  return error == std::errc() ? std::optional(seed) : std::nullopt;
}

std::string layout_left(const Flags& flags, const OutputNames& names,
                        std::span<const Layout> legal) {
  std::optional<Checkpoint> left = checkpoint_left(flags, names);
  if (!left) return {};
  const std::string layout = left->notes["layout"];
  const bool known =
      std::ranges::any_of(legal, [&](const Layout& one) { return to_string(one) == layout; });
  return known ? layout : "";
}

std::map<std::string, std::string> resume_notes(const Flags& flags, const Generator& generator,
                                                const std::string& output, uint64_t seed) {
  nlohmann::json given = nlohmann::json::object();
  for (const auto& [name, value] : flags.values())
    if (value.second != "default" && !kNotStored.count(name))
      given[name] = anywhere(name, value.first);
  for (const char* name : {"prompt", "negative-prompt"})
    if (const std::string text = flags.text(name); text.starts_with('@'))
      given[name] = "@" + absolute(text.substr(1));
  const bool is_folder_of_frames = output.ends_with('/');
  given["output"] = absolute(output.substr(0, output.size() - is_folder_of_frames));
  if (const std::string layout = layout_text(flags); layout != "auto") {
    for (int axis = 0; axis < kAxes; ++axis) given.erase(flag_of_axis(static_cast<Axis>(axis)));
    given["layout"] = layout;
  }
  given["seed"] = std::to_string(seed);
  std::map<std::string, std::string> notes = place_notes(generator);
  notes["given"] = given.dump();
  return notes;
}

std::string resume_advice(const Ranks& ranks, const OutputNames& names) {
  const std::vector<std::string> files = files_left(names);
  if (files.empty()) return "";
  const std::string start = ranks.processes ? "mpirun -n " + std::to_string(ranks.count) + " " : "";
  return "Resume: " + start + quoted(program_name()) + " generate --resume " +
         quoted(files.front());
}

bool complete(const Generator& generator, const Request& request, const std::string& path,
              const OutputNames& names) {
  if (!fs::exists(path) || !fs::exists(names.sidecar)) return false;
  try {
    const nlohmann::json sidecar = read_json_file(names.sidecar);
    return json_string_or(sidecar, "job_sha256", names.sidecar, "") ==
           job_hash(generator.job_facts(request));
  } catch (const Error&) {
    return false;
  }
}

}  // namespace weft
