#include "apps/serve/openai/client_request.h"

#include <algorithm>

#include "apps/serve/jobs/job.h"
#include "io/json.h"
#include "io/text/utf8.h"

namespace weft {
namespace {

using nlohmann::json;

[[noreturn]] void refuse_body(const std::string& message) {
  throw ClientFault("invalid_request", "", message);
}

// `is` says what the parameter is, and what is legal.
[[noreturn]] void refuse_field(const std::string& name, const std::string& is) {
  throw ClientFault("invalid_request", name, name + " is " + is);
}

json json_fields(const std::string& body) {
  const std::string where = "the body";
  try {
    check_json(body, where);
    json fields = parse_json(body, where);
    if (fields.is_object()) return fields;
  } catch (const Error& error) {
    refuse_body(error.what());
  }
  refuse_body("the body is no JSON object; legal: parameters, as {\"prompt\": \"a red ball\"}");
}

// The steps from a form's name to a value: "a[b][]" is {"a", "b", ""}. Empty where it is none.
std::vector<std::string> steps_of(const std::string& name) {
  constexpr size_t kMost = 8;
  size_t at = name.find('[');
  std::vector<std::string> steps{name.substr(0, at)};
  while (at != std::string::npos && at < name.size()) {
    const size_t end = name.find(']', at);
    if (name[at] != '[' || end == std::string::npos || steps.size() == kMost) return {};
    steps.push_back(name.substr(at + 1, end - at - 1));
    at = end + 1;
  }
  return steps;
}

// Puts a text where the steps from `at` on lead to. False where another value stands there.
bool put(json& to, const std::vector<std::string>& steps, size_t at, const std::string& text) {
  if (at == steps.size()) {
    if (to.is_null()) {
      to = text;
    } else {  // a name that is repeated is a list
      if (to.is_string()) to = json::array({to});
      if (!to.is_array()) return false;
      to.push_back(text);
    }
    return true;
  }
  const std::string& step = steps[at];
  if (!step.empty()) {
    if (!to.is_null() && !to.is_object()) return false;
    return put(to[step], steps, at + 1, text);
  }
  if (!to.is_null() && !to.is_array()) return false;
  if (to.is_null()) to = json::array();
  // "a[][b]" and "a[][c]" are of one object, until one of them comes again.
  const bool goes_on = at + 1 < steps.size() && !to.empty() && to.back().is_object() &&
                       !to.back().contains(steps[at + 1]);
  if (!goes_on) to.push_back(nullptr);
  return put(to.back(), steps, at + 1, text);
}

ClientFields form_fields(const Form& form) {
  ClientFields fields;
  for (const FormPart& part : form) {
    const std::vector<std::string> steps = steps_of(part.name);
    if (steps.empty() || steps.front().empty() || !is_utf8(part.name))
      refuse_body("a part of the form has a name that is none, legal: name, name[] or name[key]");
    if (!part.file.empty()) {
      fields.files.emplace_back(steps.front(), part.file);
      continue;
    }
    if (!is_utf8(part.text)) refuse_field(steps.front(), "no UTF-8, legal: text in UTF-8");
    if (!put(fields.values[steps.front()], steps, 1, part.text))
      refuse_field(steps.front(), "given in two forms, legal: one of name, name[] and name[key]");
  }
  return fields;
}

[[noreturn]] void refuse_for_model(const std::string& name, const std::string& why) {
  throw ClientFault("unsupported_parameter", name,
                    name + " is given, but " + why + "; legal: none");
}

// A picture or a sound that a request holds: a data URL, or a file.
struct GivenFile {
  std::string url, path;
};

// The URL of {"image_url": URL} or {"image_url": {"url": URL}}, or a URL itself.
std::string url_of(const std::string& name, const std::string& key, const json& value) {
  const std::string legal =
      "legal: a file of the form, or {\"" + key + "\": \"data:...;base64,...\"}";
  if (value.is_object()) {
    if (json_has(value, "file_id"))
      refuse_field(name, "a file_id, but this server keeps no files for later; " + legal);
    for (const std::string& inner : {key, std::string("url")})
      if (json_has(value, inner)) return url_of(name, key, value.at(inner));
  }
  if (!value.is_string()) refuse_field(name, "no data URL, " + legal);
  const std::string url = value;
  const std::string head = lowercase(url.substr(0, 8));
  if (head.starts_with("http:") || head.starts_with("https:"))
    refuse_field(name, "a URL, but this server fetches nothing from others; " + legal);
  if (!head.starts_with("data:")) refuse_field(name, "no data URL, " + legal);
  return url;
}

class Inputs {
 public:
  explicit Inputs(ClientFields& fields) : fields_(fields) {}

  // Takes what one of the names holds; two of them may not both hold something. `called` becomes
  // the name.
  std::vector<GivenFile> take(const std::vector<std::string>& names, const std::string& key,
                              std::string& called) {
    std::vector<GivenFile> all;
    for (const std::string& name : names) {
      std::vector<GivenFile> given = of(name, key);
      if (given.empty()) continue;
      if (!all.empty()) refuse_field(name, "given beside " + called + ", legal: one of the two");
      called = name;
      all = std::move(given);
    }
    return all;
  }

 private:
  std::vector<GivenFile> of(const std::string& name, const std::string& key) {
    std::vector<GivenFile> given;
    std::erase_if(fields_.files, [&](const auto& file) {
      if (file.first != name) return false;
      given.push_back({.url = "", .path = file.second});
      return true;
    });
    const json value = structured(name, fields_.take(name));
    if (value.is_null()) return given;
    for (const json& each : value.is_array() ? value : json::array({value}))
      given.push_back({.url = url_of(name, key, each), .path = ""});
    return given;
  }

  ClientFields& fields_;
};

// The pictures and the sound of a request, as fields of a job and as its files.
class Media {
 public:
  Media(ClientFields& fields, const ClientModel& model, const std::string& picture)
      : inputs_(fields), model_(model), picture_(picture) {}

  void read() {
    std::string called = picture_;
    std::vector<std::string> names{picture_};
    for (const char* name : {"input_reference", "image_reference", "image", "images"})
      if (picture_ != name) names.emplace_back(name);
    if (model_.most_references > 0) names.emplace_back("reference");
    const std::vector<GivenFile> pictures = inputs_.take(names, "image_url", called);
    if (model_.most_references > 0)
      add_references(called, pictures);
    else
      add_frames(called, pictures);
    called = "last_image";
    const std::vector<GivenFile> last = inputs_.take({"last_image"}, "image_url", called);
    if (last.size() > 1) refuse_field(called, "more than one picture, legal: one");
    if (!last.empty() && model_.most_pictures < 2)
      refuse_for_model(called, model_.name + " ends with no given picture");
    for (const GivenFile& given : last) add("last_image", called, given);
    called = "audio_reference";
    const std::vector<GivenFile> sounds =
        inputs_.take({"audio_reference", "audio"}, "audio_url", called);
    if (!sounds.empty() && !model_.hears)
      refuse_for_model(called, model_.name + " follows no sound");
    if (sounds.size() > 1) refuse_field(called, "more than one sound, legal: one");
    for (const GivenFile& sound : sounds) add("audio", called, sound);
  }

  std::vector<std::pair<std::string, std::string>> urls{}, files{}, renamed{};
  std::vector<std::string> references{};  // URLs

 private:
  void add_frames(const std::string& called, const std::vector<GivenFile>& pictures) {
    std::string reference = "reference";
    if (!inputs_.take({reference}, "image_url", reference).empty())
      refuse_for_model(reference, model_.name + " takes up no other pictures");
    check(called, static_cast<int>(pictures.size()));
    constexpr const char* kFields[] = {"image", "last_image"};
    for (size_t i = 0; i < pictures.size(); ++i) add(kFields[i], called, pictures[i]);
  }
  void add_references(const std::string& called, const std::vector<GivenFile>& pictures) {
    if (std::ssize(pictures) > model_.most_references)
      refuse_field(called, std::to_string(pictures.size()) + " pictures, legal: at most " +
                               std::to_string(model_.most_references));
    if (!pictures.empty()) renamed.emplace_back("reference", called);
    for (const GivenFile& given : pictures)
      if (given.path.empty())
        references.push_back(given.url);
      else
        files.emplace_back("reference", given.path);
  }

  void check(const std::string& called, int given) const {
    const std::string count = std::to_string(given) + (given == 1 ? " picture" : " pictures");
    if (given > 0 && model_.most_pictures == 0)
      refuse_for_model(called, model_.name + " draws from text alone");
    if (given > model_.most_pictures)
      refuse_field(called, count + ", legal: at most " + std::to_string(model_.most_pictures));
    if (given == 0 && model_.least_pictures > 0)
      refuse_field(called, "absent, legal: a picture, as " + model_.name + " draws from one");
  }

  void add(const std::string& field, const std::string& called, const GivenFile& given) {
    for (const auto& [name, unused] : renamed)
      if (name == field)
        refuse_field(called, "given beside another last picture, legal: one of the two");
    renamed.emplace_back(field, called);
    if (given.path.empty())
      urls.emplace_back(field, given.url);
    else
      files.emplace_back(field, given.path);
  }

  Inputs inputs_;
  const ClientModel& model_;
  const std::string picture_;
};

}  // namespace

json ClientFields::take(const std::string& name) {
  const auto found = values.find(name);
  if (found == values.end()) return nullptr;
  json value = std::move(*found);
  values.erase(found);
  return value;
}

ClientFields client_fields(const HttpRequest& request) {
  ClientFields fields;
  if (request.form)
    fields = form_fields(*request.form);
  else
    fields.values = json_fields(request.body);
  fields.values = flat_parameters(std::move(fields.values));
  return fields;
}

ClientRequest client_request(ClientFields fields, const ClientModel& model,
                             const std::vector<std::string>& own, const std::string& picture) {
  Media media(fields, model, picture);
  media.read();
  // The files that are left are refused as parameters that no file can be.
  for (const auto& [name, path] : fields.files) fields.values.emplace(name, "a file");
  std::vector<std::string> known = own;
  for (const std::string& name : {picture, std::string("audio_reference")}) known.push_back(name);
  const json seconds = fields.values.value("seconds", json());
  ClientJob job = client_job(fields.values, &model, known);
  for (const auto& [name, path] : fields.files)
    if (job.fields.contains(name)) refuse_field(name, "a file, legal: a value");
  for (const auto& [field, url] : media.urls) job.fields[field] = url;
  if (!media.references.empty()) job.fields["reference"] = media.references;
  ClientRequest request{.model = id_of_model(model, job.model), .quality = job.quality};
  if (seconds.is_string())
    request.seconds = seconds;
  else if (!seconds.is_null())
    request.seconds = seconds.dump();
  request.job.fields = job.fields.dump();
  request.job.files = std::move(media.files);
  request.job.renamed = std::move(job.renamed);
  for (auto& pair : media.renamed)
    if (pair.first != pair.second) request.job.renamed.push_back(std::move(pair));
  return request;
}

}  // namespace weft
