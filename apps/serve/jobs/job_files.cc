#include "apps/serve/jobs/job_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "apps/generate/expand.h"
#include "apps/generate/resume.h"
#include "apps/serve/jobs/job_submission.h"
#include "apps/serve/jobs/sent_files.h"
#include "apps/worker/job_team.h"
#include "engine/runner/result_files.h"
#include "io/part_file.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

void remove_file(const std::string& path) {
  std::error_code ignored;
  fs::remove(path, ignored);
}

bool is_of_batch(const NewJob& job) { return job.owner.starts_with(kBatchOwner); }

std::string plain_field(const std::string& field) { return field; }

struct StoredSpec {
  JobSpec spec{};
  bool expands = false;  // its prompt becomes a caption before it is drawn
};

StoredSpec stored_spec(const NewJob& job) {
  StoredSpec stored;
  nlohmann::json fields = parse_json(job.resolved, "the stored job");
  stored.expands = take_expand_prompt(fields, plain_field).value_or(false);
  read_named_job(fields, plain_field, stored.spec);
  return stored;
}

// Takes the caption that an earlier attempt wrote from the prompt, where its sidecar has one.
void take_caption(const Json& sidecar, JobSpec& spec) {
  if (sidecar.is_null() || !sidecar.contains("request")) return;
  const Json& request = sidecar.at("request");
  for (const char* field : {"prompt", "expanded_from"})
    if (!request.contains(field)) return;
  if (request.text("expanded_from") == spec.request.prompt)
    set_caption(request.text("prompt"), spec);
}

void requeue_running(JobStore& store) {
  constexpr size_t kPage = 100;
  constexpr int kMostRestarts = 10;
  std::string after;
  for (;;) {
    const auto page = store.list(kPage, after);
    if (!page) {  // that job has been forgotten meanwhile
      after.clear();
      continue;
    }
    for (const StoredJob& job : page->jobs) {
      after = job.job.id;
      if (job.state != JobState::kRunning) continue;
      const Claim claim{.stored = job, .worker = job.worker};
      const bool went_on = !files_left(output_names(job.job.output)).empty();
      if (went_on && job.attempt < kMostRestarts)
        store.release(claim);
      else
        store.give_back(claim, "its process ended in the middle of it");
    }
    if (!page->has_more) return;
  }
}

// "a.mp4" for the names ".a.part.mp4" and ".a.part-3.mp4" of hidden files; "" for others.
std::string name_of_part(const std::string& hidden) {
  const size_t mark = hidden.find(".part");
  if (!hidden.starts_with('.') || mark == std::string::npos || mark < 2) return "";
  const size_t ending = hidden.find('.', mark + 1);
  return hidden.substr(1, mark - 1) + (ending == std::string::npos ? "" : hidden.substr(ending));
}

}  // namespace

void JobFiles::remove(const NewJob& job) const {
  if (is_of_batch(job)) return;
  remove_leftovers(job);
  const OutputNames names = output_names(job.output);
  for (const std::string& path : {job.output, names.sidecar}) remove_file(path);
  remove_sent_files(stored_spec(job).spec);
}

void JobFiles::remove_leftovers(const NewJob& job) const {
  if (is_of_batch(job)) return;
  const OutputNames names = output_names(job.output);
  for (const std::string& path : files_left(names)) remove_file(path);
  try {
    drop_leftovers(names, kept_latents(flags_));
    drop_parts(job.output);
  } catch (const std::exception&) {  // another process draws it: what it writes is its own
  }
}

void JobFiles::remove_orphans(const JobStore& store, const StoreUser& user) const {
  std::set<std::string> orphans;
  const auto has_result = [&](const std::string& id) {
    return fs::exists(folder_ + id + ".png") || fs::exists(folder_ + id + ".mp4");
  };
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
    const std::string file = entry.path().filename().string();
    const std::string sent_with = user.is_alone_in(folder_) ? job_of_sent_file(file) : "";
    if (!sent_with.empty() && !store.find(sent_with) && !has_result(sent_with))
      remove_file(folder_ + file);
    const std::string name = name_of_part(file);
    const std::string id = name.substr(0, name.find('.'));
    if (!is_job_id(id) || store.find(id)) continue;
    if (files_left(output_names(folder_ + name)).empty()) orphans.insert(folder_ + name);
  }
  for (const std::string& path : orphans) {
    try {
      drop_parts(path);
    } catch (const std::exception&) {  // another process draws it
    }
  }
}

void JobFiles::await_writer(const NewJob& job, const std::atomic<bool>& stop) {
  constexpr std::chrono::milliseconds kLookAgain{200};
  while (is_being_written(job.output)) {
    if (stop) throw Error(ErrorKind::kStopped, "stopped while an earlier attempt still writes");
    std::this_thread::sleep_for(kLookAgain);
  }
}

std::string JobFiles::result_left(const StoredJob& stored, const Generator& generator) const {
  const NewJob& job = stored.job;
  const OutputNames names = output_names(job.output);
  if (!fs::exists(job.output)) return "";
  StoredSpec spec = stored_spec(job);
  if (spec.expands) take_caption(sidecar_of(job.output), spec.spec);
  Drawing drawing{.spec = std::move(spec.spec), .path = job.output};
  take_facts(drawing.spec, plain_field);
  drawing.spec.request = generator.resolve(drawing.spec.request);
  if (complete(generator, drawing)) {
    const Json sidecar = sidecar_of(job.output);
    const auto frames = static_cast<int64_t>(sidecar.number("frames"));
    return result_text(job.output, sidecar.text("framehash"), frames);
  }
  // One that can be resumed goes on, and what stood there before the job belongs to somebody else.
  if (!files_left(names).empty() || stored.attempt == 1) return "";
  for (const std::string& path : {job.output, names.sidecar}) remove_file(path);
  return "";
}

std::string JobFiles::drawn(JobTeam& team, const StoredJob& stored, ProgressListener& listener,
                            const std::atomic<bool>& stop) const {
  const NewJob& job = stored.job;
  await_writer(job, stop);
  std::string left = result_left(stored, team.runner().generator());
  if (!left.empty()) return left;
  return team.draw({.spec = job.resolved, .output = job.output}, listener, stop);
}

StoreUser::StoreUser(const std::string& store)
    : folder_(store.empty() ? ""
                            : fs::absolute(store).lexically_normal().parent_path().string() + "/") {
  if (store.empty()) return;
  lock_ = open((store + ".server").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (lock_ < 0)
    throw Error(ErrorKind::kOutput, "the lock of the store, '" + store +
                                        ".server', cannot be opened: " + std::strerror(errno));
  alone_ = flock(lock_, LOCK_EX | LOCK_NB) == 0;
}

StoreUser::~StoreUser() {
  if (lock_ >= 0) close(lock_);
}

void StoreUser::recover(JobStore& store) {
  if (alone_) requeue_running(store);
  // Another user may be alone for a moment now. No job runs then that it could take away.
  if (lock_ >= 0) flock(lock_, LOCK_SH);
}

}  // namespace weft
