#include "apps/generate/client_job.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "apps/generate/quality.h"
#include "engine/job/job_spec.h"
#include "io/json.h"
#include "io/legal.h"
#include "io/nearest.h"
#include "models/files/part_files.h"

namespace weft {
namespace {

using nlohmann::json;

// Parameters that are called otherwise than the field of a job that they are.
constexpr std::pair<const char*, const char*> kRenamed[] = {{"num_inference_steps", "steps"}};

// A field that a job of this program may have, and that read_job() does not know.
constexpr const char* kExpandPrompt = "expand_prompt";
// Fields that name something on the server's machine, or that the server sets itself.
constexpr const char* kHidden[] = {"id", "output", "endless", "expanded_from"};

// Parameters without a meaning for a model of pictures, and their values: one of some words, any
// text, or an object.
struct Tolerated {
  const char *name, *legal;
};
constexpr const char *kAnyText = "a text", *kAnyObject = "an object";
constexpr Tolerated kTolerated[] = {{"user", kAnyText},
                                    {"safety_identifier", kAnyText},
                                    {"metadata", kAnyObject},
                                    {"background", "auto|opaque"},
                                    {"moderation", "auto|low"},
                                    {"style", "vivid|natural"},
                                    {"response_format", "url|b64_json"}};

// Parameters that would change the result and that nothing here can do.
constexpr std::pair<const char*, const char*> kImpossible[] = {
    {"mask", "this server paints no part of a picture anew"},
    {"video_reference", "no model of this server reads a video"},
    {"control_reference", "no model of this server reads control pictures"},
};

[[noreturn]] void refuse(const std::string& name, const json& value, const std::string& legal) {
  throw ClientFault("invalid_request", name,
                    name + " is " + shown_value(value) + ", legal: " + legal);
}

const JobField* find_field(std::string_view name) {
  const std::span<const JobField> all = job_fields();
  const auto found = std::ranges::find(all, name, &JobField::name);
  return found == all.end() ? nullptr : &*found;
}

bool is_settable(const std::string& name) {
  if (name == kExpandPrompt) return true;
  const auto is_same = [&](const auto& part) { return name == part.first; };
  return find_field(name) && std::ranges::find(kHidden, name) == std::end(kHidden) &&
         !name.ends_with("_sha256") && !std::ranges::any_of(kParts, is_same);
}

std::vector<std::string> known_names(std::span<const std::string> own) {
  std::vector<std::string> names(own.begin(), own.end());
  for (const JobField& field : job_fields())
    if (is_settable(field.name)) names.emplace_back(field.name);
  for (const auto& [client, field] : kRenamed) names.emplace_back(client);
  for (const Tolerated& each : kTolerated) names.emplace_back(each.name);
  for (const char* each : {kExpandPrompt, "quality", "enable_teacache", "true_cfg_scale",
                           "boundary_ratio", "extra_params", "ignore_unknown", "model", "n"})
    names.emplace_back(each);
  return names;
}

// A value as read_job() takes it: forms have texts for everything.
json job_value(const std::string& name, const json& value) {
  const JobField* field = find_field(name);
  if (!field) return structured(name, value);
  switch (field->form) {
    case FieldForm::kSwitch:
      return value == "true" || value == "false" ? json(value == "true") : value;
    case FieldForm::kEntries:
      return structured(name, value);
    case FieldForm::kNumbers:
      break;
    default:
      return value;
  }
  if (!value.is_array() || !std::ranges::all_of(value, &json::is_string)) return value;
  std::string list;
  for (const json& each : value) list += (list.empty() ? "" : ",") + each.get<std::string>();
  return list;
}

double number_value(const std::string& name, const json& value) {
  if (!value.is_number() && !value.is_string()) refuse(name, value, "a number");
  const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  try {
    return GivenText{text, name, "0 ... 1000000"}.number();
  } catch (const ClientFault&) {
    throw;
  } catch (const Error& error) {
    throw ClientFault("invalid_request", name, error.what());
  }
}

class Translation {
 public:
  Translation(const ClientModel* model, std::span<const std::string> own)
      : model_(model), own_(own) {}

  void add(const std::string& name, const json& value) {
    for (const auto& [impossible, why] : kImpossible)
      if (name == impossible)
        throw ClientFault("unsupported_parameter", name,
                          name + " is given, but " + why + "; legal: none");
    if (name == "model")
      job_.model = text(name, value);
    else if (name == "quality")
      add_quality(text(name, value));
    else if (name == "true_cfg_scale")
      add_true_guidance(value);
    else if (name == "boundary_ratio")
      check_boundary(value);
    else if (name == "enable_teacache")
      add_teacache(switch_of(name, value));
    else if (name == kExpandPrompt)
      set(name, name, switch_of(name, value));
    else if (name == "n")
      count_of(name, value, "1 ... 1");
    else if (name == "size" && value == "auto")
      return;
    else if (is_settable(name) || (!model_ && find_field(name)))
      set(name, name, job_value(name, value));
    else if (!rename(name, value) && !tolerate(name, value) && !ignore_unknown)
      unknown(name);
  }

  ClientJob done() && {
    if (!job_.fields.contains("prompt"))
      throw ClientFault("invalid_request", "prompt", "prompt is absent, legal: a text");
    return std::move(job_);
  }

  bool ignore_unknown = false;

 private:
  static std::string text(const std::string& name, const json& value) {
    if (!value.is_string()) refuse(name, value, kAnyText);
    return value;
  }

  std::string called(const std::string& field) const {
    const auto found =
        std::ranges::find(job_.renamed, field, &std::pair<std::string, std::string>::first);
    return found == job_.renamed.end() ? field : found->second;
  }

  // Two parameters may set one field, to the same value.
  void set(const std::string& name, const std::string& field, const json& value) {
    const auto earlier = job_.fields.find(field);
    if (earlier == job_.fields.end()) {
      job_.fields[field] = value;
      if (name != field) job_.renamed.emplace_back(field, name);
    } else if (!same_value(*earlier, value)) {
      throw ClientFault("invalid_request", name,
                        name + " asks for " + field + " " + shown_value(value) + ", but " +
                            called(field) + " asks for " + shown_value(*earlier) +
                            "; legal: one of the two");
    }
  }

  bool rename(const std::string& name, const json& value) {
    const auto found =
        std::ranges::find(kRenamed, name, &std::pair<const char*, const char*>::first);
    if (found == std::end(kRenamed)) return false;
    set(name, found->second, job_value(found->second, value));
    return true;
  }

  static bool tolerate(const std::string& name, const json& value) {
    const auto found = std::ranges::find(kTolerated, name, &Tolerated::name);
    if (found == std::end(kTolerated)) return false;
    if (found->legal == kAnyText)
      text(name, value);
    else if (found->legal != kAnyObject)
      word_of(name, value, found->legal);
    else if (!structured(name, value).is_object())
      refuse(name, value, kAnyObject);
    return true;
  }

  void add_quality(const std::string& name) {
    const Quality* quality = find_quality(name);
    if (!quality) refuse("quality", name, listed(qualities(), &Quality::name));
    job_.quality = name;
    if (quality->method) set("quality", "method", quality->method);
    if (quality->cache) set("quality", "cache", quality->cache);
  }

  void add_teacache(bool on) {
    if (on && model_ && !model_->has_teacache)
      refuse("enable_teacache", true,
             "false, as no polynomial of TeaCache is known for " + model_->name +
                 "; quality 'balanced' takes another cache");
    set("enable_teacache", "cache", on ? "teacache:0.05" : "none");
  }

  void add_true_guidance(const json& value) {
    const double scale = number_value("true_cfg_scale", value);
    if (model_ && !model_->has_cfg)
      refuse("true_cfg_scale", value,
             "none, as " + model_->name + " has no classifier-free guidance");
    const bool from_zero = model_ && model_->guides_from_zero;
    set("true_cfg_scale", "guidance_scale", from_zero ? json(std::max(0.0, scale - 1)) : value);
  }

  void check_boundary(const json& value) {
    constexpr double kClose = 1e-6;  // as a number may have been an f32
    const double ratio = number_value("boundary_ratio", value);
    if (model_ && model_->boundary_ratio && std::abs(*model_->boundary_ratio - ratio) < kClose)
      return;
    refuse("boundary_ratio", value,
           model_ && model_->boundary_ratio
               ? shown(*model_->boundary_ratio) + ", as the model's experts were trained for it"
               : "none, as it is a fact of the model");
  }

  [[noreturn]] void unknown(const std::string& name) const {
    throw ClientFault("unsupported_parameter", name,
                      name + " is no parameter of this request" +
                          did_you_mean(nearest(name, known_names(own_))) +
                          "; with \"ignore_unknown\": true it is ignored");
  }

  const ClientModel* model_;
  std::span<const std::string> own_;
  ClientJob job_{.fields = json::object()};
};

// The parameters of an object inside another, which count as if they stood there.
void merge(json& into, const std::string& name) {
  const auto found = into.find(name);
  if (found == into.end()) return;
  const json inner = structured(name, *found);
  into.erase(found);
  if (inner.is_null()) return;
  if (!inner.is_object()) refuse(name, inner, kAnyObject);
  for (const auto& [key, value] : inner.items()) {
    const auto there = into.find(key);
    if (there != into.end() && !there->is_null() && !same_value(*there, value))
      throw ClientFault("invalid_request", key,
                        key + " is " + shown_value(*there) + " and in " + name + " " +
                            shown_value(value) + "; legal: one of the two");
    into[key] = value;
  }
}

bool same_id(std::string_view one, std::string_view other) {
  return std::ranges::equal(one, other, [](unsigned char a, unsigned char b) {
    return std::tolower(a) == std::tolower(b);
  });
}

}  // namespace

std::string model_id(std::string_view name) {
  std::string id;
  for (const unsigned char c : name)
    if (std::isalnum(c) || c == '.' || c == '_')
      id += static_cast<char>(std::tolower(c));
    else if (!id.empty() && !id.ends_with('-'))
      id += '-';
  while (id.ends_with('-')) id.pop_back();
  return id.empty() ? "model" : id;
}

ClientModel client_model(const Generator& generator, const std::vector<std::string>& served_names) {
  const ModelDirectory& directory = generator.model()->directory;
  const PictureConditioning& pictures = directory.pictures;
  const bool edits = pictures.form == PictureForm::kReferences;
  ClientModel model{.ids = {model_id(generator.model_name())},
                    .name = generator.model_name(),
                    .has_cfg = directory.family->guidance != GuidanceForm::kTold,
                    .guides_from_zero = directory.family->guidance == GuidanceForm::kBeyondPositive,
                    .has_teacache = !generator.defaults().teacache.empty(),
                    .boundary_ratio = directory.experts() > 1 ? directory.boundary_ratio
                                                              : std::optional<double>(),
                    .least_pictures = edits ? 0 : pictures.least,
                    .most_pictures = edits ? 0 : pictures.most,
                    .most_references = edits ? pictures.most : 0,
                    .hears = directory.chunks.any()};
  for (const std::string& name : served_names)
    if (std::ranges::find(model.ids, name) == model.ids.end()) model.ids.push_back(name);
  return model;
}

std::string id_of_model(const ClientModel& model, const std::string& called) {
  if (called.empty() || same_id(called, model.name)) return model.ids.front();
  for (const std::string& id : model.ids)
    if (same_id(called, id)) return id;
  throw ClientFault("model_not_found", "model",
                    "model is " + shown_value(called) + ", legal: " + listed(model.ids));
}

json structured(const std::string& name, const json& value) {
  if (!value.is_string()) return value;
  const std::string& text = value.get_ref<const std::string&>();
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos || (text[first] != '{' && text[first] != '[')) return value;
  try {
    return parse_json(text, name);
  } catch (const Error& error) {
    throw ClientFault("invalid_request", name, error.what());
  }
}

bool switch_of(const std::string& name, const json& value) {
  if (value.is_boolean()) return value;
  if (value != "true" && value != "false") refuse(name, value, "true, false");
  return value == "true";
}

std::string word_of(const std::string& name, const json& value, const char* legal) {
  if (!value.is_string()) refuse(name, value, legal);
  const std::string word = value;
  const std::vector<std::string> words = split(legal, '|');
  if (std::ranges::find(words, word) == words.end()) refuse(name, value, listed(words));
  return word;
}

int64_t count_of(const std::string& name, const json& value, const char* legal) {
  if (!value.is_number_integer() && !value.is_string()) refuse(name, value, legal);
  try {
    return GivenText{value.is_string() ? value.get<std::string>() : value.dump(), name, legal}
        .whole_number();
  } catch (const Error& error) {
    throw ClientFault("invalid_request", name, error.what());
  }
}

json flat_parameters(json given) {
  for (const char* inner : {"extra_body", "extra_params"}) merge(given, inner);
  return given;
}

ClientJob client_job(const json& given, const ClientModel* model,
                     std::span<const std::string> own) {
  const std::string ignore = "ignore_unknown";
  Translation translation(model, own);
  translation.ignore_unknown = json_has(given, ignore) && switch_of(ignore, given.at(ignore));
  for (const auto& [name, value] : given.items())
    if (!value.is_null() && name != ignore) translation.add(name, value);
  return std::move(translation).done();
}

}  // namespace weft
