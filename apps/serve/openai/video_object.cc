#include "apps/serve/openai/video_object.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/serve/openai/client_failure.h"

namespace weft {
namespace {

using nlohmann::json;

constexpr const char* kStored = "the stored job";

json object_of_text(const std::string& text) {
  return text.empty() ? json::object() : parse_json(text, kStored);
}

json progress_of(const StoredJob& job, const std::optional<LiveJob>& live) {
  return object_of_text(live && !live->progress.empty() ? live->progress : job.progress);
}

// A whole number without a fraction, so that clients may read it as an int.
Json plain_number(double value) {
  const auto whole = static_cast<int64_t>(value);
  return static_cast<double>(whole) == value ? Json(whole) : Json(value);
}

Json unix_seconds(int64_t unix_ms) { return unix_ms == 0 ? Json() : Json(unix_ms / 1000); }

}  // namespace

std::string to_text(const VideoClient& client) {
  return Json{{"model", client.model},
              {"quality", client.quality},
              {"seconds", client.seconds},
              {"remixed_from", client.remixed_from},
              {"fields", client.fields}}
      .dump();
}

VideoClient video_client(const StoredJob& job) {
  const json client = object_of_text(job.job.client);
  const auto text = [&](const char* name) { return json_string_or(client, name, kStored, ""); };
  return {.model = text("model"),
          .quality = text("quality"),
          .seconds = text("seconds"),
          .remixed_from = text("remixed_from"),
          .fields = text("fields")};
}

const char* video_status(JobState state) {
  switch (state) {
    case JobState::kQueued:
      return "queued";
    case JobState::kRunning:
      return "in_progress";
    case JobState::kCompleted:
      return "completed";
    default:
      return "failed";
  }
}

int video_percent(const StoredJob& job, const std::optional<LiveJob>& live) {
  constexpr int kMostBeforeTheEnd = 99;
  if (job.state == JobState::kCompleted) return 100;
  const double percent = json_number_or(progress_of(job, live), "percent", kStored, 0);
  return std::clamp(static_cast<int>(percent), 0, kMostBeforeTheEnd);
}

int video_poll_ms(const StoredJob& job, const std::optional<LiveJob>& live) {
  constexpr int kUnknown = 1000, kShortest = 250, kLongest = 2000;
  if (is_over(job.state)) return 0;
  const double eta = json_number_or(progress_of(job, live), "eta_s", kStored, 0);
  if (eta <= 0) return kUnknown;
  return std::clamp(static_cast<int>(std::min(eta, 3600.0) * 500), kShortest, kLongest);
}

Json video_json(const StoredJob& job, const std::optional<LiveJob>& live) {
  const json resolved = object_of_text(job.job.resolved), request = object_of_text(job.job.request);
  const VideoClient client = video_client(job);
  const auto integer = [&](const char* name) { return json_int_or(resolved, name, kStored, 0); };
  const double fps = json_number_or(resolved, "fps", kStored, 1);
  const int64_t frames = integer("num_frames");
  const std::string seconds = client.seconds.empty()
                                  ? plain_number(static_cast<double>(frames) / fps).dump()
                                  : client.seconds;
  const bool completed = job.state == JobState::kCompleted;
  Json out{
      {"id", job.job.id},
      {"object", "video"},
      {"model", client.model},
      {"status", video_status(job.state)},
      {"progress", video_percent(job, live)},
      {"created_at", unix_seconds(job.created_ms)},
      {"completed_at", unix_seconds(job.finished_ms)},
      {"expires_at", completed ? unix_seconds(job.expires_ms) : Json()},
      {"seconds", seconds},
      {"size", std::to_string(integer("width")) + "x" + std::to_string(integer("height"))},
      {"prompt", json_string_or(request, "prompt", kStored, "")},
      {"remixed_from_video_id", client.remixed_from.empty() ? Json() : Json(client.remixed_from)},
      {"error", job_error(job)},
      {"seed", resolved.contains("seed") ? Json(resolved.at("seed")) : Json()},
      {"num_frames", frames},
      {"fps", plain_number(fps)}};
  if (!client.quality.empty()) out["quality"] = client.quality;
  return out;
}

}  // namespace weft
