#include "apps/generate/request_flags.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "apps/command_line/placement.h"
#include "apps/generate/client_job.h"
#include "apps/generate/progress.h"
#include "apps/preview/preview_file.h"
#include "engine/memory/memory_advice.h"
#include "io/json.h"
#include "io/text/path_list.h"
#include "io/text/utf8.h"

namespace weft {
namespace {

// The names of --solver and the engine's names for them, where they differ. The last one is that of
// conformance cases.
constexpr std::pair<const char*, const char*> kSolvers[] = {{"unipc", "unipc-diffusers"},
                                                            {"unipc-wan", "unipc-original"},
                                                            {"dpm++", "dpmpp-diffusers"},
                                                            {"dpm++-wan", "dpmpp-original"},
                                                            {"dpmpp-wan", "dpmpp-original"}};

std::string without_line_ends(std::string text) {
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

// The object of a line. Error(kUsage) where it is none.
nlohmann::json object_of(const std::string& text, const std::string& where) {
  nlohmann::json object;
  try {
    object = parse_json(text, where);
  } catch (const Error& error) {
    throw Error(ErrorKind::kUsage, error.what());
  }
  return object;
}

// The lines of --prompt-schedule, as an array.
nlohmann::json schedule_of(const Flags& flags) {
  const std::string flag = "prompt-schedule", path = flags.text(flag);
  nlohmann::json entries = nlohmann::json::array();
  for (const Line& line : lines_of(flags, flag, path))
    entries.push_back(object_of(line.text, path + " line " + std::to_string(line.number)));
  return entries;
}

// The paths that a flag which may be repeated gives, as records have them.
std::vector<std::string> paths_of(const Flags& flags, const std::string& flag) {
  std::vector<std::string> paths = split_paths(flags.text(flag));
  if (paths.empty()) paths.emplace_back();  // which is refused
  for (std::string& path : paths) path = recorded_value(find_flag(flags.command(), flag), path);
  return paths;
}

// The fields that those flags of this command give which are `chosen`; `prompt` and `output` mean
// something else there.
nlohmann::json fields_of(const Flags& flags, bool (Flags::*chosen)(const std::string&) const) {
  nlohmann::json fields = nlohmann::json::object();
  for (const JobField& field : job_fields()) {
    const std::string name = field.name, flag = flag_of(name);
    if (name == "prompt" || name == "output" || !find_flag(flags.command(), flag)) continue;
    if (!(flags.*chosen)(flag)) continue;
    if (name == "prompt_schedule")
      fields[name] = schedule_of(flags);
    else if (name == "negative_prompt")
      fields[name] = text_argument(flags, flag);
    else if (find_flag(flags.command(), flag)->type == FlagType::kSwitch)
      fields[name] = flags.on(flag);
    else if (field.form == FieldForm::kTexts)
      fields[name] = paths_of(flags, flag);
    else
      fields[name] = recorded_value(find_flag(flags.command(), flag), flags.text(flag));
  }
  return fields;
}

bool is_side(const std::string& field) { return field == "width" || field == "height"; }

// Names the flags of fields. A side that comes from --size is named by it. `flags` must live on.
FieldLabel flag_label(const Flags& flags) {
  return [&flags](const std::string& field) {
    const std::string flag = flag_of(field);
    if (is_side(field) && !flags.given(flag) && flags.given("size"))
      return flags.label("size") + " is '" + flags.text("size") + "': its " + field;
    return flags.label(flag);
  };
}

// The fields of a job inside an envelope of OpenAI's batches: {"custom_id", "method", "url",
// "body"}.
nlohmann::json unwrapped(const nlohmann::json& envelope, const std::string& where) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::kUsage, where + what);
  };
  for (const auto& [name, value] : envelope.items()) {
    if (name == "method" && value != "POST")
      refuse(": method is " + value.dump() + ", legal: \"POST\"");
    if (name == "url" && value != "/v1/videos")
      refuse(": url is " + value.dump() + ", legal: \"/v1/videos\"");
    if (name != "custom_id" && name != "method" && name != "url" && name != "body")
      refuse(": " + name + " is no field of an envelope, legal: custom_id, method, url, body");
  }
  const nlohmann::json& body = envelope.at("body");
  if (!body.is_object()) refuse(": body is no object; legal: the parameters of /v1/videos");
  if (body.contains("id")) refuse(": body has an id; legal beside it: custom_id alone");
  if (!envelope.contains("custom_id")) refuse(": has no custom_id; legal: the name of the job");
  try {
    ClientJob job = client_job(flat_parameters(body), nullptr);
    if (!job.model.empty()) job.fields["model"] = job.model;
    job.fields["id"] = envelope["custom_id"];
    return job.fields;
  } catch (const ClientFault& fault) {
    throw Error(ErrorKind::kUsage, where + ": " + fault.what());
  }
}

}  // namespace

void keep_hashes(const std::vector<GivenPicture>& recorded, std::vector<GivenPicture>& moved) {
  if (recorded.size() != moved.size()) return;  // another job
  for (size_t i = 0; i < moved.size(); ++i) moved[i].sha256 = recorded[i].sha256;
}

std::string flag_of(std::string field) {
  std::ranges::replace(field, '_', '-');
  return field;
}

std::string standard_input() {
  return without_line_ends(
      user_text(std::string(std::istreambuf_iterator<char>(std::cin), {}), "standard input"));
}

std::string text_argument(const Flags& flags, const std::string& name) {
  const std::string value = flags.text(name);
  if (value == "-") return standard_input();
  if (!value.starts_with('@')) return value;
  std::ifstream file(value.substr(1), std::ios::binary);
  if (!file)
    throw Error(ErrorKind::kUsage, flags.label(name) + " is '" + value + "', but " +
                                       value.substr(1) + " cannot be read");
  return without_line_ends(
      user_text(std::string(std::istreambuf_iterator<char>(file), {}), value.substr(1)));
}

uint64_t seed_of(const Flags& flags) {
  const JobSpec job = job_of(flags).spec;
  return job.seeded ? job.request.seed : std::random_device{}() & 0xffffffffu;
}

std::vector<Line> lines_of(const Flags& flags, const std::string& flag, const std::string& path) {
  const std::string given = (flag.empty() ? "" : flags.label(flag) + " is ") + "'" + path + "'";
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(ErrorKind::kUsage, given + ", which cannot be read");
  std::istringstream text(user_text(std::string(std::istreambuf_iterator<char>(file), {}), path));
  std::vector<Line> lines;
  int number = 1;
  for (std::string line; std::getline(text, line); ++number) {
    const size_t first = line.find_first_not_of(" \t");
    if (first == std::string::npos || line[first] == '#') continue;
    if (line[first] == '{') line.erase(0, first);  // a JSON object, however it is indented
    lines.push_back({number, line});
  }
  if (lines.empty())
    throw Error(ErrorKind::kUsage,
                given + ", which has no prompt; legal: one per line, # begins a comment line");
  return lines;
}

std::optional<bool> take_expand_prompt(nlohmann::json& fields, const FieldLabel& label) {
  std::optional<bool> out;
  for (const char* name : {"expand_prompt", "expand-prompt"}) {
    const auto given = fields.find(name);
    if (given == fields.end()) continue;
    if (!given->is_boolean() && *given != "on" && *given != "off")
      throw Error(ErrorKind::kUsage,
                  label(name) + " is " + given->dump() + ", legal: true, false, \"on\" or \"off\"");
    out = *given == true || *given == "on";
    fields.erase(given);
  }
  return out;
}

void read_named_job(nlohmann::json fields, const FieldLabel& label, JobSpec& job) {
  if (const auto solver = fields.find("solver"); solver != fields.end() && solver->is_string())
    *solver = engine_solver(*solver);
  read_job(fields, label, job);
}

std::vector<std::string> prompts_of(const Flags& flags) {
  const std::string path = flags.text("prompt-file");
  if (path.empty()) {
    if (!flags.given("prompt"))
      throw Error(ErrorKind::kUsage, std::string("weft ") + command_spec(flags.command()).name +
                                         " needs --prompt TEXT or --prompt-file FILE");
    return {text_argument(flags, "prompt")};
  }
  if (flags.given("prompt"))
    throw Error(ErrorKind::kUsage, flags.label("prompt") + " and " + flags.label("prompt-file") +
                                       " exclude each other");
  std::vector<std::string> prompts;
  for (const Line& line : lines_of(flags, "prompt-file", path)) prompts.push_back(line.text);
  return prompts;
}

GivenJob job_of(const Flags& flags) {
  GivenJob job{.spec = {}, .label = flag_label(flags), .model = {}};
  read_named_job(fields_of(flags, &Flags::given), job.label, job.spec);
  return job;
}

GivenJob recorded_job(const Flags& flags, const nlohmann::json& request, const std::string& where) {
  const auto label = [of_flag = flag_label(flags), &flags, where](const std::string& field) {
    const bool typed = flags.typed(flag_of(field)) || (is_side(field) && flags.typed("size"));
    return typed ? of_flag(field) : where + ": " + field;
  };
  GivenJob job{.spec = {}, .label = label, .model = {}};
  read_named_job(request, label, job.spec);
  if (!request.contains("lora")) job.spec.request.loras.emplace();  // it was drawn without any
  const JobSpec recorded = job.spec;
  read_named_job(fields_of(flags, &Flags::typed), label, job.spec);
  // A flag tells where a picture or the sound lies now. It has to be the recorded one.
  job.spec.request.image.sha256 = recorded.request.image.sha256;
  job.spec.request.last_image.sha256 = recorded.request.last_image.sha256;
  job.spec.request.audio.sha256 = recorded.request.audio.sha256;
  keep_hashes(recorded.request.references, job.spec.request.references);
  if (flags.typed("prompt")) job.spec.request.prompt = text_argument(flags, "prompt");
  return job;
}

GivenJob job_of(const Flags& flags, const Line& line, const std::string& where) {
  nlohmann::json fields = Json{{"prompt", line.text}};
  if (line.text.starts_with('{')) fields = object_of(line.text, where);
  if (fields.contains("body")) fields = unwrapped(fields, where);
  GivenJob job = job_of(flags);
  if (const auto model = fields.find("model"); model != fields.end()) {
    if (!model->is_string())
      throw Error(ErrorKind::kUsage, where + ": model is " + model->dump() + ", legal: a text");
    job.model = *model;
    fields.erase(model);
  }
  const auto label = [where](const std::string& field) { return where + ": " + field; };
  job.expand = take_expand_prompt(fields, label);
  read_named_job(fields, label, job.spec);
  if (!fields.contains("prompt"))
    throw Error(ErrorKind::kUsage, where + ": has no prompt; legal: a text");
  job.label = [of_flag = job.label, fields, where](const std::string& field) {
    if (is_side(field) && !fields.contains(field) && fields.contains("size"))
      return where + ": size is " + fields["size"].dump() + ": its " + field;
    const bool own = fields.contains(field) || field == "expand_prompt";
    return own ? where + ": " + field : of_flag(field);
  };
  return job;
}

std::vector<GivenJob> jobs_of(const Flags& flags) {
  std::vector<GivenJob> jobs;
  if (const std::string path = flags.text("prompt-file"); !path.empty() && !flags.given("prompt")) {
    for (const Line& line : lines_of(flags, "prompt-file", path)) {
      const std::string where = path + " line " + std::to_string(line.number);
      jobs.push_back(job_of(flags, line, where));
    }
    return jobs;
  }
  jobs.push_back(job_of(flags));
  jobs.back().spec.request.prompt = prompts_of(flags).front();
  return jobs;
}

void take_facts(GivenJob& job, const Ranks& ranks) {
  Request& request = job.spec.request;
  std::vector<GivenPicture*> pictures{&request.image, &request.last_image};
  for (GivenPicture& picture : request.references) pictures.push_back(&picture);
  GivenSound& sound = request.audio;
  if (!sound.given() && std::ranges::none_of(pictures, &GivenPicture::given)) return;
  const std::vector<std::string> facts = agreed_texts(ranks, [&] {
    take_facts(job.spec, job.label);
    std::vector<std::string> texts{sound.path, sound.sha256, std::to_string(sound.samples)};
    for (const GivenPicture* picture : pictures)
      for (std::string text : {picture->path, picture->sha256, std::to_string(picture->width),
                               std::to_string(picture->height)})
        texts.push_back(std::move(text));
    return texts;
  });
  sound.path = facts[0], sound.sha256 = facts[1], sound.samples = std::stoll(facts[2]);
  for (size_t i = 0; i < pictures.size(); ++i) {
    const std::string* of = &facts[3 + 4 * i];
    *pictures[i] = {
        .path = of[0], .sha256 = of[1], .width = std::stoll(of[2]), .height = std::stoll(of[3])};
  }
}

Request request_of(const Flags& flags, const GivenJob& job, const Generator& generator) {
  Request request = request_of(job.spec, generator.defaults(), generator.limits(), job.label);
  if (std::optional<int64_t>* const patches = request.method->open_patches())
    *patches = parts_along(Axis::kPatch, flags);
  if (job.spec.seconds > 0 && informative(flags)) {
    const double fps = request.fps > 0 ? request.fps : generator.defaults().fps;
    std::fprintf(stderr, "weft: --seconds %g at %g fps is %lld frames, the nearest legal number\n",
                 job.spec.seconds, fps, static_cast<long long>(request.frames));
  }
  return request;
}

std::string engine_solver(const std::string& name) {
  for (const auto& [flag, engine] : kSolvers)
    if (name == flag) return engine;
  return name;
}

std::optional<double> checkpoint_seconds(const Flags& flags) {
  const std::string text = flags.text("checkpoint-every");
  if (text == "none") return std::nullopt;
  char* end = nullptr;
  const double seconds = std::strtod(text.c_str(), &end);
  if (text.empty() || *end || !(seconds >= 0) || !std::isfinite(seconds))
    throw Error(ErrorKind::kUsage, flags.label("checkpoint-every") + " is '" + text +
                                       "', legal: seconds from 0 up, or none");
  return seconds;
}

std::optional<double> segment_seconds(const Flags& flags) {
  if (!find_flag(flags.command(), "segment") || flags.text("segment") == "none")
    return std::nullopt;
  constexpr double kLongest = 86400;
  const std::string text = flags.text("segment");
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  const std::string unit = end;
  const double seconds = unit == "" || unit == "s" ? number
                         : unit == "m"             ? number * 60
                         : unit == "h"             ? number * 3600
                                                   : 0;
  if (end == text.c_str() || !(seconds > 0 && seconds <= kLongest))
    throw Error(ErrorKind::kUsage, flags.label("segment") + " is '" + text +
                                       "', legal: a length such as 60s, 2m or 1h, at most 24h, or "
                                       "none");
  return seconds;
}

namespace {

MemoryMode memory_mode(const Flags& flags) {
  const std::string mode = flags.text("mode");
  if (mode == "speed" && flags.given("resident-layers"))
    throw Error(ErrorKind::kUsage,
                flags.label("mode") + " is speed, which keeps all layers in memory, but " +
                    flags.label("resident-layers") + " is " + flags.text("resident-layers") +
                    "; legal with it: auto, memory");
  return mode == "speed"    ? MemoryMode::kSpeed
         : mode == "memory" ? MemoryMode::kMemory
                            : MemoryMode::kAuto;
}

// The options that running and planning share.
GeneratorOptions model_options(const Flags& flags) {
  GeneratorOptions options;
  options.dtype = compute_dtype(flags);
  options.weights = weight_format(flags);
  options.text_weights = text_weight_format(flags);
  options.weights_fixed = flags.given("weights");
  if (find_flag(flags.command(), "mode")) options.mode = memory_mode(flags);
  options.attention = attention_format(flags);
  if (const std::string wire = flags.text("wire-dtype"); flags.given("wire-dtype"))
    options.wire_dtype = wire == "bf16" ? DType::kBF16 : DType::kF32;
  options.vae_dtype = vae_dtype(flags);
  options.resident_blocks = static_cast<int>(flags.integer("resident-layers").value_or(0));
  options.memory_limit = flags.bytes("memory-limit");
  options.host_memory_limit = flags.bytes("host-memory-limit");
  return options;
}

// The weights that a memory mode chooses, where the flags leave them open. All ranks choose alike.
void choose_weights(const Flags& flags, GeneratorOptions& options) {
  if (options.mode != MemoryMode::kMemory) return;
  Layout layout;
  layout[Axis::kTensor] = static_cast<int>(parts_along(Axis::kTensor, flags).value_or(1));
  options.weights = smallest_weights(options, layout);
}

}  // namespace

GeneratorOptions options_of(const Flags& flags, const Ranks& ranks) {
  GeneratorOptions options = model_options(flags);
  options.graphs = flags.on("no-graphs") ? Graphs::kNone : Graphs::kRecord;
  options.device = device_of(flags, ranks);
  options.threads = threads_per_rank(flags, ranks);
  options.ranks_per_device = ranks_per_device(flags, ranks);
  options.determinism = flags.on("deterministic") ? Determinism::kFixed : Determinism::kFast;
  options.ranks_per_host = ranks.on_this_host;
  options.keeping = checkpoint_seconds(flags) ? Keeping::kCheckpoints : Keeping::kNothing;
  options.preview_every = preview_every(flags);
  choose_weights(flags, options);
  if (options.mode == MemoryMode::kMemory)
    options.weights = static_cast<WeightFormat>(
        broadcast_from_root(ranks, static_cast<uint64_t>(options.weights)));
  return options;
}

GeneratorOptions planning_options(const Flags& flags, int ranks,
                                  const std::optional<PlannedDevice>& device) {
  GeneratorOptions options = model_options(flags);
  options.threads = 1;
  options.keeping = Keeping::kCheckpoints;  // as weft generate does unless told otherwise
  options.ranks_per_device = ranks;
  if (device) options.planned = device->traits;
  choose_weights(flags, options);
  if (!device) return options;
  options.ranks_per_device = planned_ranks_per_device(flags, ranks);
  options.ranks_per_host = ranks;
  return options;
}

}  // namespace weft
