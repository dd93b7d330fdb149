#include "apps/serve/jobs/job.h"

#include <nlohmann/json.hpp>

#include "apps/serve/server_text.h"
#include "engine/job/job_spec.h"
#include "io/text/utf8.h"

namespace weft {
namespace {

nlohmann::json stored_json(const std::string& text) {
  return text.empty() ? nlohmann::json() : parse_json(text, "the stored job");
}

// A time as text and in ms of Unix time.
void add_time(Json& to, const std::string& name, int64_t unix_ms) {
  using std::chrono::milliseconds, std::chrono::system_clock;
  to[name] = Json();
  to[name + "_ms"] = Json();
  if (unix_ms == 0) return;
  to[name] = utc_text(system_clock::time_point(milliseconds(unix_ms)));
  to[name + "_ms"] = unix_ms;
}

// Returns a request with the names of its files in place of their paths.
nlohmann::json shown_request(const std::string& text) {
  nlohmann::json request = stored_json(text);
  request.erase("id");
  hide_folders(request);
  return request;
}

Json queue_json(const StoredJob& job) {
  if (job.position == 0) return nullptr;
  return {{"position", job.position}, {"depth", job.depth}};
}

// The percentage never falls: a job that is tried again begins anew, though.
Json progress_json(const StoredJob& job, const std::optional<LiveJob>& live) {
  Json progress{{"percent", 0.0}, {"stage", ""},       {"step", 0},
                {"steps", 0},     {"s_per_step", 0.0}, {"eta_s", 0.0}};
  const std::string& told = live && !live->progress.empty() ? live->progress : job.progress;
  if (!told.empty()) progress.update(Json(stored_json(told)));
  if (job.state == JobState::kCompleted) progress["percent"] = 100.0;
  return progress;
}

Json preview_json(const StoredJob& job, const std::optional<LiveJob>& live) {
  if (!live || live->preview_number == 0) return nullptr;
  return {{"step", live->preview_step},
          {"steps", live->preview_steps},
          {"url", "/v1/jobs/" + job.job.id + "/preview"}};
}

Json outputs_json(const StoredJob& job, const nlohmann::json& resolved) {
  Json outputs = Json::array();
  const std::optional<JobOutput> output = output_of(job);
  if (!output) return outputs;
  const double fps = json_number_or(resolved, "fps", "the stored job", 1);
  Json shown{{"mime", output->content_type},
             {"bytes", output->bytes},
             {"sha256", output->sha256},
             {"framehash", output->framehash},
             {"width", json_int_or(resolved, "width", "the stored job", 0)},
             {"height", json_int_or(resolved, "height", "the stored job", 0)},
             {"frames", output->frames},
             {"fps", fps},
             {"duration_s", static_cast<double>(output->frames) / fps},
             {"url", "/v1/jobs/" + job.job.id + "/content"}};
  if (!output->prompt.empty()) shown["prompt"] = output->prompt;
  outputs.push_back(std::move(shown));
  return outputs;
}

}  // namespace

Json job_json(const StoredJob& job, const std::optional<LiveJob>& live) {
  const nlohmann::json resolved = shown_request(job.job.resolved);
  Json out{
      {"id", job.job.id},
      {"kind", json_int_or(resolved, "num_frames", "the stored job", 0) == 1 ? "image" : "video"},
      {"state", to_string(job.state)},
      {"attempt", job.attempt},
      {"replica", job.worker.empty() ? Json() : Json(job.worker)}};
  add_time(out, "created", job.created_ms);
  add_time(out, "started", job.started_ms);
  add_time(out, "finished", job.finished_ms);
  add_time(out, "expires", job.expires_ms);
  out["queue"] = queue_json(job);
  out["progress"] = progress_json(job, live);
  out["preview"] = preview_json(job, live);
  out["request"] = Json(shown_request(job.job.request));
  out["resolved"] = Json(resolved);
  out["outputs"] = outputs_json(job, resolved);
  out["error"] = Json(stored_json(job.error));
  out["warnings"] = job.warnings.empty() ? Json::array() : Json(stored_json(job.warnings));
  return out;
}

std::optional<JobOutput> output_of(const StoredJob& job) {
  if (job.result.empty()) return std::nullopt;
  constexpr const char* kWhat = "the stored result";
  const nlohmann::json result = stored_json(job.result);
  return JobOutput{.path = path_of_text(json_string(result, "path", kWhat)),
                   .content_type = json_string(result, "content_type", kWhat),
                   .sha256 = json_string(result, "sha256", kWhat),
                   .framehash = json_string(result, "framehash", kWhat),
                   .bytes = static_cast<uint64_t>(json_int(result, "bytes", kWhat)),
                   .frames = json_int(result, "frames", kWhat),
                   .prompt = result.value("prompt", "")};
}

std::string error_code_of(const StoredJob& job) {
  const nlohmann::json error = stored_json(job.error);
  return error.is_object() ? error.value("code", "") : "";
}

void check_json(const std::string& body, const std::string& where) {
  constexpr size_t kMostKeys = 10'000;
  JsonLimits limits;
  limits.keys = kMostKeys;
  parse_json(body, where, JsonDialect::kStrict, limits);
}

}  // namespace weft
