#include "apps/serve/openai/image_request.h"

#include <algorithm>
#include <utility>

#include "io/json.h"

namespace weft {
namespace {

using nlohmann::json;

constexpr const char* kOwnParameters[] = {
    "n",          "response_format", "output_format",  "output_compression",
    "background", "stream",          "partial_images", "size",
    "prompt",     "quality"};

json taken(ClientFields& fields, const char* name, json fallback) {
  json value = fields.take(name);
  return value.is_null() ? fallback : value;
}

PictureFormat format_in(ClientFields& fields) {
  const std::string name = "output_format";
  return *picture_format(word_of(name, taken(fields, name.c_str(), "png"), kPictureFormats));
}

int compression_in(ClientFields& fields, PictureFormat format) {
  const std::string name = "output_compression";
  const bool loses = format != PictureFormat::kPng;
  const int64_t given =
      count_of(name, taken(fields, name.c_str(), 100), loses ? "0 ... 100" : "100 ... 100");
  return static_cast<int>(given);
}

void check_background(ClientFields& fields) {
  const std::string name = "background";
  const json given = taken(fields, name.c_str(), "auto");
  if (given == "transparent")
    throw ClientFault("invalid_request", name,
                      "background is 'transparent', but this model draws no transparency; legal: "
                      "auto, opaque");
  word_of(name, given, "auto|opaque");
}

// Clients of the dall-e models expect addresses unless they say otherwise.
const char* default_form(const ClientFields& fields, bool streamed) {
  const json model = fields.values.value("model", json());
  const bool expects_url =
      model.is_string() && lowercase(model.get<std::string>()).starts_with("dall-e");
  return expects_url && !streamed ? "url" : "b64_json";
}

// One frame is what these routes draw, whatever the model could.
void set_one_frame(ClientFields& fields) {
  for (const char* name : {"seconds", "audio_reference", "audio"})
    if (fields.values.contains(name) && !fields.values.at(name).is_null())
      throw ClientFault("unsupported_parameter", name,
                        std::string(name) +
                            " is given, but this route draws pictures; legal: "
                            "none, or POST /v1/videos");
  count_of("num_frames", taken(fields, "num_frames", 1), "1 ... 1");
  fields.values["num_frames"] = 1;
}

// The qualities of this server in the words of OpenAI's answers.
struct QualityName {
  const char *asked, *answered;
};
constexpr QualityName kQualityNames[] = {
    {"low", "low"},     {"fast", "low"}, {"medium", "medium"}, {"balanced", "medium"},
    {"xhigh", "xhigh"}, {"hd", "xhigh"}, {"max", "max"},       {"lossless", "max"}};

void check_pictures(const ClientFields& fields, const ClientModel& model) {
  const auto has = [&](const std::string& name) {
    const auto value = fields.values.find(name);
    const bool in_json =
        value != fields.values.end() && !value->is_null() && !(value->is_array() && value->empty());
    return in_json ||
           std::ranges::find(fields.files, name, &std::pair<std::string, std::string>::first) !=
               fields.files.end();
  };
  const bool given = has("image") || has("images");
  if (model.most_references == 0)
    throw ClientFault("unsupported_parameter", "image",
                      given ? "image is given, but " + model.name +
                                  " edits no pictures; legal: POST /v1/images/generations"
                            : "image is absent, and " + model.name + " edits no pictures");
  if (!given)
    throw ClientFault("invalid_request", "image",
                      "image is absent, legal: a file of the form, or a data URL");
}

}  // namespace

ImageRequest image_request(const HttpRequest& request, const ClientModel& model, ImageTask task) {
  ClientFields fields = client_fields(request);
  ImageRequest out{.task = task};
  if (task == ImageTask::kEdit) check_pictures(fields, model);
  out.count = static_cast<int>(count_of("n", taken(fields, "n", 1), "1 ... 10"));
  out.file.format = format_in(fields);
  out.file.compression = compression_in(fields, out.file.format);
  out.streamed = switch_of("stream", taken(fields, "stream", false));
  const std::string form = "response_format";
  const char* form_left_open = default_form(fields, out.streamed);
  out.as_url = word_of(form, taken(fields, form.c_str(), form_left_open), "b64_json|url") == "url";
  check_background(fields);
  out.partial_images =
      static_cast<int>(count_of("partial_images", taken(fields, "partial_images", 0), "0 ... 3"));
  if (out.streamed && out.as_url)
    throw ClientFault("invalid_request", form,
                      "response_format is 'url', but events hold the pictures themselves; legal: "
                      "b64_json, or stream false");
  if (task == ImageTask::kEdit) {
    const json fidelity = taken(fields, "input_fidelity", "high");
    word_of("input_fidelity", fidelity, "high|low");
  }
  set_one_frame(fields);
  const std::vector<std::string> own(std::begin(kOwnParameters), std::end(kOwnParameters));
  out.client = client_request(std::move(fields), model, own, "image");
  return out;
}

ImageJobs::ImageJobs(ImageRequest& request) : job_(std::exchange(request.client.job, {})) {
  job_.client = image_client_text(request.file);
}

SentJob ImageJobs::next(std::span<const NewJob> before) {
  if (before.size() == 1) {  // the first has saved the files
    json fields = parse_json(job_.fields, kSentJob);
    for (const char* field : kFileFields) fields.erase(field);
    job_.fields = fields.dump();
    job_.files.clear();
  }
  SentJob job = job_;
  job.id = new_job_id("image");
  job.number = static_cast<int>(before.size());
  if (before.empty()) return job;
  const json first = parse_json(before.front().resolved, "the first job");
  for (const std::string field : kFileFields)
    if (first.contains(field))
      for (auto& file : links_.of(field, first.at(field))) job.files.push_back(std::move(file));
  return job;
}

std::string image_client_text(const ImageFile& file) {
  return Json{{"output_format", to_string(file.format)}, {"output_compression", file.compression}}
      .dump();
}

ImageFile image_file_of(const std::string& client_text) {
  constexpr const char* kWhat = "the stored job";
  ImageFile file;
  if (client_text.empty()) return file;
  const json stored = parse_json(client_text, kWhat);
  const auto format = picture_format(json_string_or(stored, "output_format", kWhat, "png"));
  file.format = format.value_or(PictureFormat::kPng);
  file.compression = static_cast<int>(
      json_int_or(stored, "output_compression", kWhat, 100, {.min = 0, .max = 100}));
  return file;
}

std::string answered_quality(const std::string& asked) {
  for (const QualityName& name : kQualityNames)
    if (asked == name.asked) return name.answered;
  return "high";
}

}  // namespace weft
