#pragma once
// A job of a server, from its request to its result, and its form in JSON.
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/service/sidecar.h"
#include "io/json.h"
#include "kernels/check.h"

namespace weft {

// A job is queued, then running, then one of the others, which it stays. A queued one may also
// become cancelled.
enum class JobState { kQueued, kRunning, kCompleted, kFailed, kCancelled };
const char* to_string(JobState state);
inline bool is_over(JobState state) { return state > JobState::kRunning; }

struct JobProgress {
  double percent = 0;  // never falls, and is 100 of completed jobs alone
  std::string stage{};
  int step = 0, steps = 0;  // of the stage
  double seconds_per_step = 0, eta_seconds = 0;
};

// The newest preview of a running job.
struct JobPreview {
  int step = 0, steps = 0;
  std::string png;
};

struct JobResult {
  std::string path{};  // no client sees it
  std::string content_type{}, sha256{}, framehash{};
  uint64_t bytes = 0;
  int64_t frames = 0;
};

struct JobFailure {
  std::string code, message;
  std::vector<std::string> hints{};
};

using JobTime = std::chrono::system_clock::time_point;

struct ServedJob {
  std::string id{};
  Drawing drawing{};  // its whole request, and the path of its result
  Json request{};     // as it was sent, weft.job/v1
  JobState state = JobState::kQueued;
  JobTime created{};
  std::optional<JobTime> started{}, finished{};
  size_t position = 0, depth = 0;  // from 1 among the queued jobs, and their number; 0: not queued
  JobProgress progress{};
  std::shared_ptr<const JobPreview> preview{};  // null: none yet, or the job is over
  std::optional<JobResult> result{};
  std::optional<JobFailure> failure{};
  std::vector<std::string> warnings{};
};

std::string new_job_id();  // "job_" and 24 random hex digits

Json to_json(const ServedJob& job);

// The error of a job without the folders of this machine. The hints are what the memory planner
// offers.
JobFailure failure_of(const Error& error);

// A text in which paths are shortened to the names of their files.
std::string without_folders(const std::string& text);

}  // namespace weft
