#include "engine/job/job_spec.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/job/prompt_schedule.h"
#include "io/json.h"
#include "io/legal.h"
#include "io/nearest.h"
#include "io/picture/picture_fit.h"
#include "io/sha256.h"
#include "io/text/utf8.h"
#include "models/presets.h"

namespace weft {
namespace {

void set_id(JobSpec& job, const GivenText& value) {
  constexpr size_t kLongest = 64;
  const std::u32string text = decode_utf8(value.text);
  const bool plain = std::ranges::all_of(text, [](char32_t c) { return c >= 0x20; });
  if (text.empty() || text.size() > kLongest || !plain) value.refuse("1 ... 64 characters");
  job.id = value.text;
}

// A path that stays inside the folder of results.
void set_output(JobSpec& job, const GivenText& value) {
  const std::string path = path_of_text(value.text);
  const bool leaves = path.starts_with('/') || ("/" + path + "/").find("/../") != std::string::npos;
  if (path.empty() || leaves) value.refuse("a path inside the folder of --output");
  job.output = path;
}

void set_size(JobSpec& job, const GivenText& value) {
  const auto size = parse_size(value.text);
  if (!size) value.refuse("WxH or W*H, as 832x480");
  job.request.width = size->first;
  job.request.height = size->second;
}

// Other settings may mean other steps to skip.
void decide_again(JobSpec& job) { job.request.cache.skipped.reset(); }

void set_sigmas(JobSpec& job, const GivenText& value) {
  std::vector<double> sigmas;
  for (const char* at = value.text.c_str(); *at;) {
    char* end = nullptr;
    const double sigma = std::strtod(at, &end);
    const double below = sigmas.empty() ? 2 : sigmas.back();
    if (end == at || (*end && *end != ',') || !(sigma > 0 && sigma <= 1 && sigma < below))
      value.refuse("falling numbers, at most 1 and above 0, separated by commas");
    sigmas.push_back(sigma);
    at = *end ? end + 1 : end;
  }
  if (sigmas.empty()) return;
  decide_again(job);
  job.request.steps = static_cast<int>(sigmas.size());
  job.request.flow_shift.reset();
  job.request.sigmas = std::move(sigmas);
}

void set_seed(JobSpec& job, const GivenText& value) {
  job.seeded = value.text != "-1";
  if (!job.seeded) return;
  errno = 0;
  job.request.seed = std::strtoull(value.text.c_str(), nullptr, 10);
  const bool digits = value.text.find_first_not_of("0123456789") == std::string::npos;
  if (errno || value.text.empty() || !digits)
    value.refuse("0 ... 18446744073709551615, or -1 for random");
}

// The text is that of a JSON array.
void set_prompt_schedule(JobSpec& job, const GivenText& value) {
  nlohmann::json entries;
  try {
    entries = parse_json(value.text, value.label);
  } catch (const Error&) {
    value.refuse("an array of {\"at\": \"12s\", \"prompt\": TEXT}");
  }
  job.request.schedule = read_prompt_schedule(entries, value.label);
}

// Another file is another picture or sound, whose hash is not known.
template <auto Request::*given>
void set_given(JobSpec& job, const GivenText& value) {
  job.request.*given = {.path = path_of_text(value.text)};
}

bool is_hash(const std::string& text) {
  return text.size() == 64 && std::ranges::all_of(text, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

constexpr const char* kHashRule = "64 lower-case hexadecimal digits";

template <auto Request::*given>
void set_hash(JobSpec& job, const GivenText& value) {
  if (!is_hash(value.text)) value.refuse(kHashRule);
  (job.request.*given).sha256 = value.text;
}

// Both texts are those of JSON arrays.
void set_references(JobSpec& job, const GivenText& value) {
  job.request.references.clear();
  for (const nlohmann::json& path : parse_json(value.text, value.label)) {
    if (path.get_ref<const std::string&>().empty()) value.refuse("paths of pictures");
    job.request.references.push_back({.path = path_of_text(path.get<std::string>())});
  }
}

void set_reference_hashes(JobSpec& job, const GivenText& value) {
  const nlohmann::json hashes = parse_json(value.text, value.label);
  std::vector<GivenPicture>& pictures = job.request.references;
  if (hashes.size() != pictures.size())
    value.refuse(std::to_string(pictures.size()) + " hashes, one for each reference");
  for (size_t i = 0; i < pictures.size(); ++i) {
    if (!is_hash(hashes[i])) value.refuse(kHashRule);
    pictures[i].sha256 = hashes[i];
  }
}

constexpr std::pair<const char*, PictureFit> kFits[] = {{"cover", PictureFit::kCover},
                                                        {"contain", PictureFit::kContain},
                                                        {"stretch", PictureFit::kStretch}};

void set_picture_fit(JobSpec& job, const GivenText& value) {
  const std::string name = value.one_of();
  for (const auto& [known, fit] : kFits)
    if (name == known) job.request.image_fit = fit;
}

const char* to_string(PictureFit fit) {
  return std::ranges::find(kFits, fit, &std::pair<const char*, PictureFit>::second)->first;
}

bool is_on(const GivenText& value) {
  const std::string& text = value.one_of();
  return text == "true" || text == "on";
}

// A part of the model that has a file of its own.
template <std::string PartFiles::*part>
void set_file(JobSpec& job, const GivenText& value) {
  if (value.text.empty()) value.refuse("the path of a file");
  job.request.files.*part =
      std::filesystem::absolute(path_of_text(value.text)).lexically_normal().string();
}

// Another preset has other LoRAs. Those that stand beside it take their place.
void set_preset(JobSpec& job, const GivenText& value) {
  if (value.text == kNoPreset) {
    if (!job.preset.empty()) value.refuse("a preset, as the command gives " + job.preset);
    return;
  }
  if (!preset_of_name(value.text, value.label).loras.empty()) job.request.loras.reset();
  job.request.guidance_scale_2.reset();
  job.preset = value.text;
}

struct Rule {
  JobField field;
  void (*set)(JobSpec& job, const GivenText& value);
};

// A field that replaces an earlier one stands below it: sigmas below steps and flow_shift, lora
// below preset.
constexpr Rule kRules[] = {
    {{"id", nullptr}, set_id},
    {{"output", nullptr}, set_output},
    {{"prompt", nullptr}, [](JobSpec& job, const GivenText& v) { job.request.prompt = v.text; }},
    {{"negative_prompt", nullptr},
     [](JobSpec& job, const GivenText& v) { job.request.negative_prompt = v.text; }},
    {{"expanded_from", nullptr},
     [](JobSpec& job, const GivenText& v) { job.expanded_from = v.text; }},
    {{"size", nullptr}, set_size},
    {{"width", "1 ... 16384", FieldForm::kNumber},
     [](JobSpec& job, const GivenText& v) { job.request.width = v.whole_number(); }},
    {{"height", "1 ... 16384", FieldForm::kNumber},
     [](JobSpec& job, const GivenText& v) { job.request.height = v.whole_number(); }},
    {{"num_frames", "1 ... 1048576", FieldForm::kNumber},
     [](JobSpec& job, const GivenText& v) {
       job.request.frames = v.whole_number();
       job.seconds = 0;
     }},
    {{"seconds", "0.001 ... 36000", FieldForm::kNumber},
     [](JobSpec& job, const GivenText& v) {
       job.seconds = v.number();
       job.request.frames = 0;
     }},
    {{"round_frames", "true|false|on|off", FieldForm::kSwitch},
     [](JobSpec& job, const GivenText& v) { job.round_frames = is_on(v); }},
    {{"endless", "true|false|on|off", FieldForm::kSwitch},
     [](JobSpec& job, const GivenText& v) { job.request.endless = is_on(v); }},
    {{"fps", "0.1 ... 1000", FieldForm::kNumber},
     [](JobSpec& job, const GivenText& v) { job.request.fps = v.rate(); }},
    {{"steps", "1 ... 1000", FieldForm::kNumber},
     [](JobSpec& job, const GivenText& v) {
       decide_again(job);
       job.request.steps = static_cast<int>(v.whole_number());
       job.request.sigmas.clear();
     }},
    {{"guidance_scale", "0 ... 100", FieldForm::kNumber},
     [](JobSpec& job, const GivenText& v) { job.request.guidance_scale = v.number(); }},
    {{"guidance_scale_2", "0 ... 100", FieldForm::kNumber},
     [](JobSpec& job, const GivenText& v) { job.request.guidance_scale_2 = v.number(); }},
    {{"flow_shift", "0.001 ... 1000", FieldForm::kNumber},
     [](JobSpec& job, const GivenText& v) {
       decide_again(job);
       job.request.flow_shift = v.number();
       job.request.sigmas.clear();
     }},
    {{"solver", "unipc-diffusers|unipc-original|dpmpp-diffusers|dpmpp-original|euler|distill-4"},
     [](JobSpec& job, const GivenText& v) {
       decide_again(job);
       job.request.solver = v.one_of();
     }},
    {{"sigmas", nullptr, FieldForm::kNumbers}, set_sigmas},
    {{"seed", nullptr, FieldForm::kNumber}, set_seed},
    {{"rng", "portable|torch-cpu"},
     [](JobSpec& job, const GivenText& v) { job.request.rng = rng_from_name(v.one_of()); }},
    {{"method", nullptr},
     [](JobSpec& job, const GivenText& v) { job.request.method = parse_method(v.text, v.label); }},
    {{"resync_every", "1 ... 1000", FieldForm::kNumber},
     [](JobSpec& job, const GivenText& v) { job.request.method->resync = v.whole_number(); }},
    {{"cache", nullptr},
     [](JobSpec& job, const GivenText& v) {
       job.request.cache = parse_step_cache(v.text, v.label);
     }},
    {{"skipped_steps", nullptr, FieldForm::kNumbers},
     [](JobSpec& job, const GivenText& v) {
       job.request.cache.skipped = parse_skipped_steps(v.text, v.label);
     }},
    {{"noise", "pool|iid"},
     [](JobSpec& job, const GivenText& v) {
       job.request.noise = noise_mode_from_name(v.one_of());
     }},
    {{"prompt_schedule", nullptr, FieldForm::kEntries}, set_prompt_schedule},
    {{"transformer", nullptr}, set_file<&PartFiles::transformer>},
    {{"transformer_2", nullptr}, set_file<&PartFiles::transformer_2>},
    {{"text_encoder", nullptr}, set_file<&PartFiles::text_encoder>},
    {{"text_encoder_2", nullptr}, set_file<&PartFiles::text_encoder_2>},
    {{"tokenizer", nullptr}, set_file<&PartFiles::tokenizer>},
    {{"tokenizer_2", nullptr}, set_file<&PartFiles::tokenizer_2>},
    {{"vae", nullptr}, set_file<&PartFiles::vae>},
    {{"image_encoder", nullptr}, set_file<&PartFiles::image_encoder>},
    {{"image", nullptr}, set_given<&Request::image>},
    {{"image_sha256", nullptr}, set_hash<&Request::image>},
    {{"last_image", nullptr}, set_given<&Request::last_image>},
    {{"last_image_sha256", nullptr}, set_hash<&Request::last_image>},
    {{"image_fit", "cover|contain|stretch"}, set_picture_fit},
    {{"reference", nullptr, FieldForm::kTexts}, set_references},
    {{"reference_sha256", nullptr, FieldForm::kTexts}, set_reference_hashes},
    {{"audio", nullptr}, set_given<&Request::audio>},
    {{"audio_sha256", nullptr}, set_hash<&Request::audio>},
    {{"preset", nullptr}, set_preset},
    {{"lora", nullptr},
     [](JobSpec& job, const GivenText& v) { job.request.loras = parse_loras(v.text, v.label); }},
};

constexpr auto kFields = [] {
  std::array<JobField, std::size(kRules)> fields{};
  for (size_t i = 0; i < fields.size(); ++i) fields[i] = kRules[i].field;
  return fields;
}();

// Describes the form for messages.
const char* legal_form(FieldForm form) {
  constexpr const char* kForms[] = {"a text",
                                    "a number, or a text that is one",
                                    "true, false, \"on\" or \"off\"",
                                    "numbers in a list, or in a text with commas",
                                    "a text, or a list of texts",
                                    "a list of {\"at\": \"12s\", \"prompt\": TEXT}"};
  return kForms[static_cast<int>(form)];
}

bool has_form(const nlohmann::json& value, FieldForm form) {
  switch (form) {
    case FieldForm::kText:
      return value.is_string();
    case FieldForm::kNumber:
      return value.is_string() || value.is_number();
    case FieldForm::kSwitch:
      return value.is_boolean() || value == "on" || value == "off";
    case FieldForm::kNumbers:
      return value.is_string() || (value.is_array() && !value.empty() &&
                                   std::ranges::all_of(value, &nlohmann::json::is_number));
    case FieldForm::kTexts:
      return value.is_string() ||
             (value.is_array() && std::ranges::all_of(value, &nlohmann::json::is_string));
    case FieldForm::kEntries:
      break;
  }
  return value.is_array();
}

nlohmann::json as_list(const nlohmann::json& value) {
  return value.is_array() ? value : nlohmann::json::array({value});
}

// The value of a field, as a flag has it: a list of numbers has commas, the schedule is JSON, and
// so are texts.
std::string text_of(const nlohmann::json& value, FieldForm form) {
  if (form == FieldForm::kTexts) return as_list(value).dump();
  if (value.is_string()) return value.get<std::string>();
  if (form == FieldForm::kNumbers) {
    std::string list;
    for (const nlohmann::json& each : value)
      list += (list.empty() ? "" : ",") + text_of(each, FieldForm::kNumber);
    return list;
  }
  std::string text = value.dump();
  if (value.is_number_float() && text.ends_with(".0")) text.resize(text.size() - 2);
  return text;
}

[[noreturn]] void unknown(const std::string& name, const FieldLabel& label) {
  std::vector<std::string> known;
  for (const JobField& field : kFields) known.push_back(field.name);
  const std::string near = nearest(name, known);
  throw Error(ErrorKind::kUsage,
              label(name) + " is no field of a job; " +
                  (near.empty() ? "legal: " + listed(known) : "did you mean " + near + "?"));
}

// Adds the fields that a preset stands for. Error(kUsage) where one of them has another value, also
// beside the preset that the job has already.
void add_preset(nlohmann::json& fields, const FieldLabel& label, const std::string& earlier) {
  const auto given = fields.find("preset");
  const bool is_new = given != fields.end();
  if (is_new ? !given->is_string() || *given == kNoPreset : earlier.empty()) return;
  const Preset& preset =
      preset_of_name(is_new ? given->get<std::string>() : earlier, label("preset"));
  for (const auto& [name, value] : preset.fields()) {
    const auto field = fields.find(name);
    if (field == fields.end()) {
      if (is_new && !value.empty()) fields[name] = value;
      continue;
    }
    const std::string own = text_of(*field, FieldForm::kNumbers);
    if (value.empty() || !same_value(own, value))
      throw Error(ErrorKind::kUsage, label(name) + " is " + own + ", but " + label("preset") +
                                         " is " + preset.name +
                                         "; legal with it: " + (value.empty() ? "none" : value));
  }
}

// Refuses fields of one object that contradict each other.
void check_fields(const nlohmann::json& object, const FieldLabel& label) {
  const auto text = [&](const char* name) -> std::string {
    const auto form = std::ranges::find(kFields, std::string_view(name), &JobField::name)->form;
    return object.contains(name) ? text_of(object.at(name), form) : "";
  };
  const auto refuse = [](const std::string& message) { throw Error(ErrorKind::kUsage, message); };
  if (const auto size = parse_size(text("size")))
    for (const auto& [name, side] : {std::pair{"width", size->first}, {"height", size->second}})
      if (const std::string given = text(name); !given.empty() && std::stod(given) != double(side))
        refuse(label("size") + " " + text("size") + " contradicts " + label(name));
  const std::string endless = text("endless");
  const bool has_end = endless.empty() || endless == "false" || endless == "off";
  const auto exclude = [&](const char* one, const char* other) {
    if (!text(one).empty() && !text(other).empty())
      refuse(label(one) + " and " + label(other) + " exclude each other");
  };
  exclude("seconds", "num_frames");
  for (const char* length : {"seconds", "num_frames"})
    if (!has_end) exclude("endless", length);
  const std::string sigmas = text("sigmas"), steps = text("steps");
  if (sigmas.empty()) return;
  const auto count = 1 + std::ranges::count(sigmas, ',');
  if (!steps.empty() && std::stod(steps) != double(count))
    refuse(label("steps") + " is " + steps + ", but " + label("sigmas") + " has " +
           std::to_string(count) + " values");
  if (!text("flow_shift").empty())
    refuse(label("flow_shift") + " is given beside " + label("sigmas") +
           ", which are used as they are; legal: one of the two");
}

constexpr std::string_view kPlace[] = {"isa", "layout", "threads", "version"};

// The facts that two runs of the same job have in common, by name.
nlohmann::json facts_of(const std::string& record) {
  const nlohmann::json parsed = parse_json(record, "the record of a job");
  nlohmann::json facts = parsed.at("request");
  for (const auto& [name, value] : parsed.at("engine").items())
    if (std::ranges::find(kPlace, name) == std::end(kPlace)) facts[name] = value;
  // A picture is known by its pixels and a sound by its bytes, wherever its file lies.
  for (const std::string given : kFileFields)
    if (facts.contains(given + "_sha256")) facts.erase(given);
  return facts;
}

}  // namespace

std::span<const JobField> job_fields() { return kFields; }

void read_job(const nlohmann::json& object, const FieldLabel& label, JobSpec& job) {
  nlohmann::json fields = nlohmann::json::object();
  for (const auto& [key, value] : object.items()) {
    std::string name = key;
    std::ranges::replace(name, '-', '_');
    if (name == "schema" && value != kJobSchema)
      throw Error(ErrorKind::kUsage,
                  label(name) + " is " + value.dump() + ", legal: \"" + kJobSchema + "\"");
    const bool known = name == "schema" || std::ranges::any_of(kFields, [&](const JobField& field) {
                         return name == field.name;
                       });
    if (!known) unknown(key, label);
    fields[name] = value;
  }
  add_preset(fields, label, job.preset);
  JobSpec read = job;
  for (const auto& [field, set] : kRules) {
    const auto given = fields.find(field.name);
    if (given == fields.end()) continue;
    const std::string name = label(field.name);
    if (!has_form(*given, field.form))
      throw Error(ErrorKind::kUsage,
                  name + " is " + shown_value(*given) + ", legal: " + legal_form(field.form));
    set(read, {text_of(*given, field.form), name, field.legal});
  }
  check_fields(fields, label);
  job = std::move(read);
}

Json to_json(const JobSpec& job) {
  const Request& request = job.request;
  Json out{{"schema", kJobSchema}, {"prompt", request.prompt}};
  const auto set = [&](const char* name, bool given, const auto& value) {
    if (given) out[name] = value;
  };
  const auto optional = [&](const char* name, const auto& value) {
    if (value) out[name] = *value;
  };
  set("id", !job.id.empty(), job.id);
  set("output", !job.output.empty(), path_text(job.output));
  set("preset", !job.preset.empty(), job.preset);
  set("expanded_from", !job.expanded_from.empty(), job.expanded_from);
  optional("negative_prompt", request.negative_prompt);
  set("width", request.width > 0, request.width);
  set("height", request.height > 0, request.height);
  set("num_frames", request.frames > 0 && !request.endless, request.frames);
  set("endless", request.endless, true);
  set("seconds", job.seconds > 0, job.seconds);
  set("round_frames", job.round_frames, true);
  set("fps", request.fps > 0, request.fps);
  set("steps", request.steps > 0, request.steps);
  optional("guidance_scale", request.guidance_scale);
  if (request.guidance_scale_2 != request.guidance_scale)
    optional("guidance_scale_2", request.guidance_scale_2);
  optional("flow_shift", request.flow_shift);
  set("solver", !request.solver.empty(), request.solver);
  set("sigmas", !request.sigmas.empty(), request.sigmas);
  set("seed", job.seeded, request.seed);
  out["rng"] = to_string(request.rng);
  set("method", !std::holds_alternative<Auto>(request.method), to_string(request.method));
  const StepCache& cache = request.cache;
  set("cache", cache.kind != StepCacheKind::kNone, to_string(cache));
  if (cache.skipped && cache.kind != StepCacheKind::kNone) out["skipped_steps"] = *cache.skipped;
  set("noise", request.noise != NoiseMode::kPool, to_string(request.noise));
  for (const auto& [name, path] : kParts)
    set(name, !(request.files.*path).empty(), path_text(request.files.*path));
  if (request.loras) out["lora"] = request.loras->empty() ? kNoLora : to_string(*request.loras);
  const auto set_given = [&](const std::string& name, const auto& given) {
    set(name.c_str(), !given.path.empty(), path_text(given.path));
    set((name + "_sha256").c_str(), !given.sha256.empty(), given.sha256);
  };
  set_given("image", request.image);
  set_given("last_image", request.last_image);
  set_given("audio", request.audio);
  nlohmann::json paths = nlohmann::json::array(), hashes = paths;
  for (const GivenPicture& picture : request.references) {
    paths.push_back(path_text(picture.path));
    if (!picture.sha256.empty()) hashes.push_back(picture.sha256);
  }
  set("reference", !paths.empty(), paths);
  set("reference_sha256", !hashes.empty() && hashes.size() == paths.size(), hashes);
  set("image_fit", request.image.given() || request.last_image.given(),
      to_string(request.image_fit));
  set("prompt_schedule", !request.schedule.empty(), to_json(request.schedule));
  return nlohmann::json(out);  // its keys in alphabetical order
}

void take_preset(JobSpec& job, const ModelDirectory& model, const FieldLabel& label) {
  if (job.preset.empty()) return;
  const Preset& preset = preset_of_name(job.preset, label("preset"));
  std::optional<std::vector<Lora>>& loras = job.request.loras;
  if (loras && loras->empty() && !preset.loras.empty())
    throw Error(ErrorKind::kUsage, label("lora") + " is none, but " + label("preset") + " is " +
                                       job.preset + "; legal with it: its LoRA, or another one");
  check_preset(preset, model, label("preset"));
  if (!loras && !preset.loras.empty()) loras = preset_loras(preset, model, label("preset"));
  job.preset.clear();
}

void take_facts(JobSpec& job, const FieldLabel& label) {
  take_facts(job.request.image, label("image"));
  take_facts(job.request.last_image, label("last_image"));
  for (GivenPicture& picture : job.request.references) take_facts(picture, label("reference"));
  take_facts(job.request.audio, label("audio"));
}

Request request_of(const JobSpec& job, const DefaultSettings& defaults, const ModelLimits& limits,
                   const FieldLabel& label) {
  Request request = job.request;
  const int64_t multiple = limits.frame_multiple;
  const auto nearest_legal = [&](double frames) {
    return std::max<int64_t>(0, std::llround((frames - 1) / double(multiple))) * multiple + 1;
  };
  std::string frames = label("num_frames") + " is ";
  if (request.endless) {
    request.frames = (limits.max_frames - 1) / multiple * multiple + 1;
  } else if (job.seconds > 0) {
    request.frames = nearest_legal(job.seconds * (request.fps > 0 ? request.fps : defaults.fps));
    frames = label("seconds") + " is " + shown(job.seconds) + ", which is ";
  } else if (request.frames > 0 && job.round_frames) {
    request.frames = nearest_legal(static_cast<double>(request.frames));
  }
  frames += std::to_string(request.frames) + (job.seconds > 0 ? " frames" : "");
  for (const auto& [name, side] : {std::pair{"width", request.width}, {"height", request.height}})
    if (side) check_on_grid(label(name) + " is " + std::to_string(side), side, side_grid(limits));
  if (request.frames) check_on_grid(frames, request.frames, frame_grid(limits));
  if (request.guidance_scale_2 && limits.experts < 2 &&
      request.guidance_scale_2 != request.guidance_scale)
    throw Error(ErrorKind::kUsage,
                label("guidance_scale_2") + " is " + shown(*request.guidance_scale_2) +
                    ", but this model has one expert; legal: " + label("guidance_scale") +
                    " alone");
  return request;
}

std::optional<std::pair<int64_t, int64_t>> parse_size(const std::string& text) {
  int width = 0, height = 0, used = 0;
  if (text.find_first_not_of("0123456789xX*") != std::string::npos ||
      std::sscanf(text.c_str(), "%d%*1[xX*]%d%n", &width, &height, &used) != 2 ||
      used != static_cast<int>(text.size()) || std::min(width, height) < 1 ||
      std::max(width, height) > kMaxSide)
    return std::nullopt;
  return std::pair<int64_t, int64_t>{width, height};
}

std::string job_hash(const std::string& record) { return sha256_hex(facts_of(record).dump()); }

std::string difference(const std::string& there, const std::string& here) {
  const nlohmann::json before = facts_of(there), now = facts_of(here);
  nlohmann::json all = before;
  all.update(now);
  const auto quoted = [](const nlohmann::json& facts, const std::string& name) {
    const auto found = facts.find(name);
    if (found == facts.end()) return std::string("absent");
    const std::string text = found->is_string() ? found->get<std::string>() : found->dump();
    return "'" + text.substr(0, 80) + "'";
  };
  std::string text;
  for (const auto& [name, unused] : all.items())
    if (before.value(name, nlohmann::json()) != now.value(name, nlohmann::json()))
      text += (text.empty() ? "" : "; ") + name + " is " + quoted(before, name) + " there and " +
              quoted(now, name) + " here";
  return text;
}

}  // namespace weft
