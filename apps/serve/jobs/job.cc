#include "apps/serve/jobs/job.h"

#include <sstream>

#include "apps/batch/job_drawing.h"
#include "apps/serve/jobs/sent_files.h"
#include "apps/serve/server_text.h"
#include "engine/job/job_spec.h"

namespace weft {
namespace {

Json shown_time(const std::optional<JobTime>& time) {
  if (!time) return nullptr;
  return utc_text(*time);
}

Json queue_json(const ServedJob& job) {
  if (job.position == 0) return nullptr;
  return {{"position", job.position}, {"depth", job.depth}};
}

Json progress_json(const JobProgress& progress) {
  return {{"percent", progress.percent},
          {"stage", progress.stage},
          {"step", progress.step},
          {"steps", progress.steps},
          {"s_per_step", progress.seconds_per_step},
          {"eta_s", progress.eta_seconds}};
}

Json preview_json(const ServedJob& job) {
  if (!job.preview) return nullptr;
  return {{"step", job.preview->step},
          {"steps", job.preview->steps},
          {"url", "/v1/jobs/" + job.id + "/preview"}};
}

Json outputs_json(const ServedJob& job) {
  Json outputs = Json::array();
  if (!job.result) return outputs;
  const Request& request = job.drawing.spec.request;
  outputs.push_back({{"mime", job.result->content_type},
                     {"bytes", job.result->bytes},
                     {"sha256", job.result->sha256},
                     {"framehash", job.result->framehash},
                     {"width", request.width},
                     {"height", request.height},
                     {"frames", job.result->frames},
                     {"fps", request.fps},
                     {"duration_s", static_cast<double>(job.result->frames) / request.fps},
                     {"url", "/v1/jobs/" + job.id + "/content"}});
  return outputs;
}

Json failure_json(const std::optional<JobFailure>& failure) {
  if (!failure) return nullptr;
  return {{"code", failure->code}, {"message", failure->message}, {"hints", failure->hints}};
}

// The settings that the memory planner offers: "... are available. Try --layout tensor=4 (1.20 GiB)
// or layers=4 (1.31 GiB) or --dtype bf16".
std::vector<std::string> planner_hints(const std::string& message, size_t& end) {
  constexpr std::string_view kBegin = ". Try ", kBetween = " or ", kLayout = "--layout ";
  std::vector<std::string> hints;
  end = message.rfind(kBegin);
  if (end == std::string::npos) return hints;
  for (size_t at = end + kBegin.size(); at < message.size();) {
    const size_t next = std::min(message.find(kBetween, at), message.size());
    std::string hint = message.substr(at, next - at);
    const bool second_layout = !hint.starts_with("--") && hint.find('=') != std::string::npos;
    hints.push_back(second_layout ? std::string(kLayout) + hint : hint);
    at = next + kBetween.size();
  }
  return hints;
}

}  // namespace

const char* to_string(JobState state) {
  constexpr const char* kNames[] = {"queued", "running", "completed", "failed", "cancelled"};
  return kNames[static_cast<int>(state)];
}

std::string new_job_id() { return "job_" + random_hex(3); }

Json to_json(const ServedJob& job) {
  JobSpec resolved = without_folders(job.drawing.spec);
  resolved.id.clear();
  resolved.seeded = true;
  return {{"id", job.id},
          {"kind", resolved.request.frames == 1 ? "image" : "video"},
          {"state", to_string(job.state)},
          {"created", shown_time(job.created)},
          {"started", shown_time(job.started)},
          {"finished", shown_time(job.finished)},
          {"queue", queue_json(job)},
          {"progress", progress_json(job.progress)},
          {"preview", preview_json(job)},
          {"request", job.request},
          {"resolved", to_json(resolved)},
          {"outputs", outputs_json(job)},
          {"error", failure_json(job.failure)},
          {"warnings", job.warnings}};
}

JobFailure failure_of(const Error& error) {
  JobFailure failure{error_code(error.kind()), error.what()};
  if (error.kind() == ErrorKind::kMemory) {
    size_t end = std::string::npos;
    failure.hints = planner_hints(failure.message, end);
    if (end != std::string::npos) failure.message.resize(end + 1);
  } else if (error.kind() != ErrorKind::kUsage) {
    failure.message = without_folders(failure.message);
  }
  return failure;
}

std::string without_folders(const std::string& text) {
  std::istringstream words(text);
  std::string out;
  for (std::string word; words >> word;) {
    const size_t slash = word.size() < 2 ? std::string::npos : word.rfind('/', word.size() - 2);
    const size_t begin = word.starts_with('\'') ? 1 : 0;  // a quotation mark stays
    if (slash != std::string::npos) word.erase(begin, slash + 1 - begin);
    out += (out.empty() ? "" : " ") + word;
  }
  return out;
}

}  // namespace weft
