#pragma once
// A service whose jobs are done, fail or stop when the test says so, with a server before it.
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/serve/jobs/job_routes.h"
#include "apps/serve/jobs/replicas.h"
#include "tests/apps/serve_testing.h"

namespace weft {

class JobServer : public testing::Test {
 protected:
  using json = nlohmann::json;
  enum class Outcome { kNone, kDone, kFails };

  void SetUp() override {
    path_ = testing::TempDir() + "/weft_job_" + std::to_string(getpid()) + ".mp4";
    std::ofstream(path_) << "movie";
    ServerSettings settings = server_settings();
    settings.routes = job_routes(service_, services_);
    add_routes(settings.routes);
    running_.emplace(std::move(settings));
  }
  void TearDown() override {
    running_.reset();
    end_work();
    std::filesystem::remove(path_);
  }
  virtual ServerSettings server_settings() { return {}; }
  virtual void add_routes(std::vector<Route>&) {}

  virtual NewJob read_sent(const SentJob& sent) const { return read(sent.fields); }
  // The reader makes a job of every body but "bad"; the body is its id.
  NewJob read(const std::string& body) const {
    if (body == "bad") throw Error(ErrorKind::kUsage, "the job: bad, legal: good");
    return {.id = body,
            .program = "p",
            .request = R"({"prompt": "a ball"})",
            .resolved =
                R"({"prompt": "a ball", "num_frames": 5, "fps": 8.0, "width": 64, "height": 64})",
            .output = path_};
  }

  void work(int replicas = 1) {
    std::vector<DrawJob> draws(
        static_cast<size_t>(replicas),
        [this](const StoredJob& job, ProgressListener& listener, const std::atomic<bool>& stop) {
          return draw(job.job.id, listener, stop);
        });
    replicas_.emplace(service_, job_metrics_, "p", std::move(draws));
  }
  void end_work() {
    service_.drain();
    service_.stop_running();
    replicas_.reset();
  }
  std::string draw(const std::string& id, ProgressListener& listener,
                   const std::atomic<bool>& stop) {
    Progress progress;
    progress.stage = "denoise";
    progress.step = 1;
    progress.total = 2;
    progress.seconds_per_step = 0.5;
    listener.progress(progress);
    if (previews_)
      listener.preview({.step = 2, .total = 5, .frames = {Frame(4, 4), Frame(6, 2), Frame(4, 4)}});
    std::unique_lock lock(mutex_);
    drawn_.push_back(id);
    changed_.notify_all();
    while (outcomes_[id] == Outcome::kNone && !stop) changed_.wait_for(lock, 2ms);
    if (stop) throw Error(ErrorKind::kStopped, "stopped");
    if (outcomes_[id] == Outcome::kFails)
      throw Error(ErrorKind::kMemory,
                  "the job needs 9 GiB, 1 GiB are available. Try --layout tensor=4 (1.20 GiB)");
    return json{{"path", path_},    {"content_type", "video/mp4"},
                {"sha256", "cafe"}, {"framehash", "f"},
                {"bytes", 5},       {"frames", 5}}
        .dump();
  }
  void let_go(const std::string& id, Outcome outcome = Outcome::kDone) {
    const std::lock_guard lock(mutex_);
    outcomes_[id] = outcome;
    changed_.notify_all();
  }
  void wait_until_drawn(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return drawn_.size() >= count; });
  }

  RawClient::Answer ask(const std::string& bytes) { return running_->ask(bytes); }
  static std::string code(const RawClient::Answer& answer) {
    return json::parse(answer.body).at("error").at("code");
  }
  json job(const std::string& id) { return json::parse(ask(get("/v1/jobs/" + id)).body); }
  json wait_until_over(const std::string& id) {
    for (;;) {
      json now = job(id);
      if (!now.at("finished").is_null()) return now;
      std::this_thread::sleep_for(2ms);
    }
  }
  static std::string post_with(const std::string& headers, const std::string& body) {
    return "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\n" + headers +
           "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }

  const JobServices services_{.read = [this](const SentJob& sent) { return read_sent(sent); },
                              .remove_files =
                                  [this](const NewJob& job) {
                                    const std::lock_guard lock(mutex_);
                                    removed_.push_back(job.id);
                                  },
                              .draining = [this] { return draining_.load(); }};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Outcome> outcomes_;
  std::vector<std::string> drawn_, removed_;
  bool previews_ = false;
  std::atomic<bool> draining_{false};
  std::string path_;
  Metrics metrics_{server_metrics()};
  ReplicaMetrics job_metrics_{metrics_};
  Service service_{{.store = "",
                    .limits = {.queued = 3, .queued_per_owner = 2},
                    .ended = [this](const StoredJob& over) { job_metrics_.ended(over); },
                    .forgotten =
                        [this](const StoredJob& gone) {
                          const std::lock_guard lock(mutex_);
                          removed_.push_back(gone.job.id);
                        }}};
  std::optional<Replicas> replicas_;
  std::optional<RunningServer> running_;
};

}  // namespace weft
