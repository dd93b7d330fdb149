#include "apps/serve/openai/client_failure.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace weft {
namespace {

// The codes of a failure, as the service names them and as clients know them.
constexpr std::pair<const char*, const char*> kCodes[] = {
    {"memory", "out_of_memory"},
    {"communication", "comm_failure"},
    {"media", "media_rejected"},
    {"output", "output_failed"},
    {"usage", "invalid_request"},
    {"model", "internal"},
    {"non_finite", "non_finite"},
    {"poisoned", "poisoned"},
    {"deadline_exceeded", "deadline_exceeded"}};

// The status of a request whose job failed with a code of job_error().
int status_of_failure(const std::string& code) {
  if (code == "invalid_request" || code == "media_rejected") return 400;
  if (code == "cancelled") return 409;
  if (code == "out_of_memory") return 422;
  return code == "deadline_exceeded" || code == "expired" ? 504 : 500;
}

}  // namespace

Json job_error(const StoredJob& job) {
  if (job.state == JobState::kCancelled)
    return {{"code", "cancelled"}, {"message", "The job was cancelled."}};
  if (job.state == JobState::kExpired)
    return {{"code", "expired"}, {"message", "The job did not begin before its deadline."}};
  if (job.state != JobState::kFailed) return nullptr;
  constexpr const char* kWhat = "the stored error";
  const nlohmann::json error = parse_json(job.error.empty() ? "{}" : job.error, kWhat);
  const std::string code = json_string_or(error, "code", kWhat, "");
  const auto known = std::ranges::find(kCodes, code, &std::pair<const char*, const char*>::first);
  return {{"code", known == std::end(kCodes) ? "internal" : known->second},
          {"message", json_string_or(error, "message", kWhat, "The job failed.")}};
}

std::optional<ClientFailure> client_failure(const std::optional<StoredJob>& job) {
  if (job && job->state == JobState::kCompleted) return std::nullopt;
  if (!job) return ClientFailure{409, "cancelled", "The job was removed."};
  const Json error = job_error(*job);
  const std::string& code = error.text("code");
  return ClientFailure{status_of_failure(code), code, error.text("message")};
}

// The request would fail again, unless it was the machine that failed.
HttpResponse failure_response(const ClientFailure& failure) {
  HttpResponse response = error_response(failure.status, failure.code, failure.message);
  if (failure.status == 500 && failure.code != "comm_failure" && failure.code != "internal")
    response.headers.emplace_back("x-should-retry", "false");
  return response;
}

}  // namespace weft
