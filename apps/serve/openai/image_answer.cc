#include "apps/serve/openai/image_answer.h"

#include <chrono>
#include <nlohmann/json.hpp>

#include "apps/serve/jobs/job.h"

namespace weft {
namespace {

constexpr const char* kStored = "the stored job";

int64_t unix_seconds() {
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
          {"created_at", unix_seconds()},
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

// A failure of a job, by the code that the store has of it: the status, and the code of a client.
struct FailureRow {
  const char* stored;
  int status;
  const char* code;
};
constexpr FailureRow kFailures[] = {{"usage", 400, "invalid_request"},
                                    {"media", 400, "media_rejected"},
                                    {"memory", 422, "out_of_memory"},
                                    {"non_finite", 500, "non_finite"},
                                    {"communication", 500, "comm_failure"},
                                    {"output", 500, "output_failed"},
                                    {"deadline_exceeded", 504, "deadline_exceeded"},
                                    {"poisoned", 500, "poisoned"}};

}  // namespace

ImageFacts image_facts(const StoredJob& job, const ImageRequest& request, size_t index) {
  const nlohmann::json resolved = parse_json(job.job.resolved, kStored);
  ImageFacts facts{.id = job.job.id,
                   .format = to_string(request.file.format),
                   .quality = answered_quality(request.client.quality),
                   .task = request.task,
                   .index = static_cast<int>(index)};
  facts.width = static_cast<int>(json_int_or(resolved, "width", kStored, 0));
  facts.height = static_cast<int>(json_int_or(resolved, "height", kStored, 0));
  if (json_has(resolved, "seed")) facts.seed = resolved.at("seed").dump();
  if (json_has(resolved, "expanded_from"))
    facts.revised_prompt = json_string_or(resolved, "prompt", kStored, "");
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
  return Json{{"created", unix_seconds()},
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

std::optional<ImageFailure> image_failure(const std::optional<StoredJob>& job) {
  if (!job || job->state == JobState::kCancelled)
    return ImageFailure{409, "cancelled", "A job of the request was cancelled."};
  if (job->state == JobState::kExpired)
    return ImageFailure{504, "expired", "The request waited for longer than it may."};
  if (job->state == JobState::kCompleted) return std::nullopt;
  ImageFailure failure{500, "internal", "A job of the request failed."};
  if (job->error.empty()) return failure;
  const nlohmann::json error = parse_json(job->error, kStored);
  failure.message = json_string_or(error, "message", kStored, failure.message);
  if (json_has(error, "hints")) failure.hints = json_strings(error, "hints", kStored);
  const std::string code = json_string_or(error, "code", kStored, "");
  for (const FailureRow& row : kFailures)
    if (code == row.stored) {
      failure.status = row.status;
      failure.code = row.code;
    }
  return failure;
}

// The request would fail again, unless it was the machine that failed.
HttpResponse failure_response(const ImageFailure& failure) {
  HttpResponse response =
      error_response(failure.status, failure.code, failure.message, "", failure.hints);
  if (failure.status == 500 && failure.code != "comm_failure" && failure.code != "internal")
    response.headers.emplace_back("x-should-retry", "false");
  return response;
}

std::string error_event(const ImageFailure& failure) {
  const HttpResponse response = failure_response(failure);
  Json event = Json(parse_json(response.body, "the error"));
  event["type"] = "error";
  return event_text("error", "", event.dump_in_order());
}

}  // namespace weft
