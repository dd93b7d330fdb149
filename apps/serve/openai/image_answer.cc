#include "apps/serve/openai/image_answer.h"

#include <chrono>
#include <nlohmann/json.hpp>

#include "apps/serve/jobs/job.h"

namespace weft {
namespace {

constexpr const char* kStoredImage = "the stored job";

int64_t seconds_now() {
  using namespace std::chrono;
  return duration_cast<seconds>(system_clock::now().time_since_epoch()).count();
}

std::string size_text(const ImageFacts& facts) {
  return std::to_string(facts.width) + "x" + std::to_string(facts.height);
}

// OpenAI's types want one. This server counts no tokens.
Json no_usage() {
  const Json none{{"image_tokens", 0}, {"text_tokens", 0}};
  return {{"input_tokens", 0},
          {"input_tokens_details", none},
          {"output_tokens", 0},
          {"output_tokens_details", none},
          {"total_tokens", 0}};
}

Json event_fields(const ImageFacts& facts, const std::string& type, const std::string& base64) {
  return {{"type", type},
          {"b64_json", base64},
          {"created_at", seconds_now()},
          {"size", size_text(facts)},
          {"quality", facts.quality},
          {"background", "opaque"},
          {"output_format", facts.format},
          {"image_index", facts.index},
          {"id", facts.id}};
}

std::string event_of(const Json& fields) {
  return event_text(fields.text("type"), "", fields.dump_in_order());
}

std::string event_type(const ImageFacts& facts, const std::string& what) {
  return (facts.task == ImageTask::kEdit ? "image_edit." : "image_generation.") + what;
}

}  // namespace

ImageFacts image_facts(const StoredJob& job, const ImageRequest& request, size_t index) {
  const nlohmann::json resolved = parse_json(job.job.resolved, kStoredImage);
  ImageFacts facts{.id = job.job.id,
                   .format = to_string(request.file.format),
                   .quality = answered_quality(request.client.quality),
                   .task = request.task,
                   .index = static_cast<int>(index)};
  facts.width = static_cast<int>(json_int_or(resolved, "width", kStoredImage, 0));
  facts.height = static_cast<int>(json_int_or(resolved, "height", kStoredImage, 0));
  if (json_has(resolved, "seed")) facts.seed = resolved.at("seed").dump();
  if (const auto output = output_of(job)) facts.revised_prompt = output->prompt;
  return facts;
}

Json image_data(const ImageFacts& facts, const std::string& server, const std::string& base64) {
  Json data;
  if (base64.empty())
    data["url"] = server + "/v1/images/" + facts.id + "/content";
  else
    data["b64_json"] = base64;
  data["revised_prompt"] = facts.revised_prompt.empty() ? Json() : Json(facts.revised_prompt);
  data["id"] = facts.id;
  data["seed"] = facts.seed.empty() ? Json() : Json(nlohmann::json::parse(facts.seed));
  return data;
}

std::string images_body(const ImageFacts& facts, const std::vector<Json>& data) {
  return Json{{"created", seconds_now()},
              {"data", Json(data)},
              {"output_format", facts.format},
              {"size", size_text(facts)},
              {"quality", facts.quality},
              {"background", "opaque"},
              {"usage", no_usage()}}
             .dump_in_order() +
         "\n";
}

std::string partial_event(const ImageFacts& facts, const std::string& base64, int number) {
  Json fields = event_fields(facts, event_type(facts, "partial_image"), base64);
  fields["partial_image_index"] = number;
  return event_of(fields);
}

std::string completed_event(const ImageFacts& facts, const std::string& base64) {
  Json fields = event_fields(facts, event_type(facts, "completed"), base64);
  fields["usage"] = no_usage();
  return event_of(fields);
}

std::string error_event(const ClientFailure& failure) {
  const HttpResponse response = failure_response(failure);
  Json event = Json(parse_json(response.body, "the error"));
  event["type"] = "error";
  return event_text("error", "", event.dump_in_order());
}

}  // namespace weft
