// The jobs of a server: their states, their order, their bounds, and the routes that show them.
#include "apps/serve/jobs/job_queue.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/serve/jobs/job_routes.h"
#include "io/picture/picture_reader.h"
#include "tests/apps/serve_testing.h"

namespace weft {
namespace {

using nlohmann::json;

// A queue whose jobs are done, fail or stop when the test says so.
class Jobs : public testing::Test {
 protected:
  enum class Outcome { kNone, kDone, kFails, kStops };

  void TearDown() override {
    queue_.drain();
    let_go(Outcome::kDone);
    if (worker_.joinable()) worker_.join();
  }

  static ServedJob job(const std::string& id) {
    ServedJob job{.id = id, .request = {{"prompt", "a ball"}}};
    job.drawing.spec.request.frames = 5;
    job.drawing.spec.request.fps = 8;
    job.drawing.spec.id = id;
    return job;
  }

  void work() {
    worker_ = std::thread([this] {
      queue_.work([this](const Drawing& drawing, ProgressListener& listener,
                         const std::atomic<bool>& stop) { return run(drawing, listener, stop); });
    });
  }
  JobResult run(const Drawing& drawing, ProgressListener& listener, const std::atomic<bool>& stop) {
    Progress progress;
    progress.stage = "denoise";
    progress.step = 1;
    progress.total = 2;
    progress.seconds_per_step = 0.5;
    listener.progress(progress);
    if (previews_)
      listener.preview({.step = 2, .total = 5, .frames = {Frame(4, 4), Frame(6, 2), Frame(4, 4)}});
    std::unique_lock lock(mutex_);
    drawn_.push_back(drawing.spec.id);
    changed_.notify_all();
    while (outcome_ == Outcome::kNone && !stop) changed_.wait_for(lock, 5ms);
    const Outcome outcome = std::exchange(outcome_, Outcome::kNone);
    changed_.notify_all();
    if (stop) throw Error(ErrorKind::kStopped, "stopped");
    if (outcome == Outcome::kFails)
      throw Error(ErrorKind::kMemory,
                  "the job needs 9 GiB, 1 GiB are available. Try --layout tensor=4 (1.20 GiB) or "
                  "layers=4 (1.31 GiB) or --dtype bf16");
    return {.path = path_, .content_type = "video/mp4", .sha256 = "cafe", .bytes = 5, .frames = 5};
  }
  void let_go(Outcome outcome) {
    const std::lock_guard lock(mutex_);
    outcome_ = outcome;
    changed_.notify_all();
  }
  void wait_until_drawn(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return drawn_.size() >= count; });
  }
  ServedJob wait_until_over(const std::string& id) {
    for (;;) {
      const ServedJob job = *queue_.find(id);
      if (job.finished) return job;
      std::this_thread::sleep_for(2ms);
    }
  }
  JobState state(const std::string& id) { return queue_.find(id)->state; }

  Metrics metrics_{server_metrics()};
  JobQueue queue_{{.queued = 3, .history = 2}, &metrics_, [this](const ServedJob& job) {
                    const std::lock_guard lock(mutex_);
                    ended_.push_back(job.id);
                  }};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> drawn_, ended_;
  Outcome outcome_ = Outcome::kNone;
  bool previews_ = false;
  std::string path_;
  std::thread worker_;
};

TEST_F(Jobs, AreDrawnInTheOrderInWhichTheyCame) {
  for (const char* id : {"a", "b", "c"}) EXPECT_EQ(queue_.add(job(id)), JobAnswer::kDone);
  EXPECT_EQ(queue_.find("c")->position, 3u);
  EXPECT_EQ(queue_.find("a")->depth, 3u);
  EXPECT_EQ(queue_.add(job("d")), JobAnswer::kFull);
  EXPECT_NE(metrics_.text().find("weft_jobs_queued 3\n"), std::string::npos);
  work();
  wait_until_drawn(1);
  EXPECT_EQ(state("a"), JobState::kRunning);
  EXPECT_EQ(queue_.find("c")->position, 2u);
  EXPECT_EQ(queue_.find("a")->position, 0u);
  EXPECT_NE(metrics_.text().find("weft_jobs_running 1\n"), std::string::npos);
  EXPECT_EQ(queue_.add(job("d")), JobAnswer::kDone);
  for (const char* id : {"a", "b", "c", "d"}) {
    let_go(Outcome::kDone);
    EXPECT_EQ(wait_until_over(id).state, JobState::kCompleted) << id;
  }
  queue_.drain();
  worker_.join();
  EXPECT_EQ(drawn_, (std::vector<std::string>{"a", "b", "c", "d"}));
  EXPECT_EQ(ended_, drawn_);
  EXPECT_NE(metrics_.text().find("weft_job_duration_seconds_count{state=\"completed\"} 4\n"),
            std::string::npos);
}

TEST_F(Jobs, ProgressRisesTo100WithTheEndAlone) {
  queue_.add(job("a"));
  EXPECT_EQ(queue_.find("a")->progress.percent, 0);
  work();
  wait_until_drawn(1);
  const ServedJob running = *queue_.find("a");
  EXPECT_EQ(running.progress.stage, "denoise");
  EXPECT_EQ(running.progress.step, 1);
  EXPECT_EQ(running.progress.steps, 2);
  EXPECT_EQ(running.progress.seconds_per_step, 0.5);
  EXPECT_GT(running.progress.percent, 0);
  EXPECT_LT(running.progress.percent, 100);
  let_go(Outcome::kDone);
  const ServedJob over = wait_until_over("a");
  EXPECT_EQ(over.progress.percent, 100);
  EXPECT_LE(*over.started, *over.finished);
  EXPECT_LE(over.created, *over.started);
}

TEST_F(Jobs, CancelledOnesStayCancelled) {
  queue_.add(job("a"));
  queue_.add(job("b"));
  work();
  wait_until_drawn(1);
  EXPECT_EQ(queue_.cancel("b"), JobAnswer::kDone);
  EXPECT_EQ(state("b"), JobState::kCancelled);
  EXPECT_FALSE(queue_.find("b")->started);
  EXPECT_EQ(queue_.remove("a"), JobAnswer::kActive);
  EXPECT_EQ(queue_.cancel("a"), JobAnswer::kDone);
  const ServedJob stopped = wait_until_over("a");
  EXPECT_EQ(stopped.state, JobState::kCancelled);
  EXPECT_FALSE(stopped.failure);
  EXPECT_LT(stopped.progress.percent, 100);
  EXPECT_EQ(queue_.cancel("a"), JobAnswer::kDone);
  EXPECT_EQ(queue_.cancel("none"), JobAnswer::kUnknown);
  queue_.add(job("c"));
  wait_until_drawn(2);
  EXPECT_EQ(drawn_.back(), "c");  // b was never drawn
  let_go(Outcome::kDone);
  EXPECT_EQ(wait_until_over("c").state, JobState::kCompleted);
  EXPECT_EQ(queue_.cancel("c"), JobAnswer::kOver);
  EXPECT_EQ(state("c"), JobState::kCompleted);
}

TEST_F(Jobs, AFailureOffersWhatThePlannerFound) {
  queue_.add(job("a"));
  queue_.add(job("b"));
  work();
  let_go(Outcome::kFails);
  const ServedJob failed = wait_until_over("a");
  EXPECT_EQ(failed.state, JobState::kFailed);
  ASSERT_TRUE(failed.failure);
  EXPECT_EQ(failed.failure->code, "memory");
  EXPECT_EQ(failed.failure->message, "the job needs 9 GiB, 1 GiB are available.");
  EXPECT_EQ(failed.failure->hints,
            (std::vector<std::string>{"--layout tensor=4 (1.20 GiB)",
                                      "--layout layers=4 (1.31 GiB)", "--dtype bf16"}));
  let_go(Outcome::kDone);  // the next one is drawn all the same
  EXPECT_EQ(wait_until_over("b").state, JobState::kCompleted);
}

TEST_F(Jobs, ErrorsShowNoFolders) {
  const JobFailure failure = failure_of(
      {ErrorKind::kOutput, "cannot write '/home/someone/out/a.mp4': No space left in /home/x/"});
  EXPECT_EQ(failure.code, "output");
  EXPECT_EQ(failure.message, "cannot write 'a.mp4': No space left in x/");
  EXPECT_EQ(failure_of({ErrorKind::kUsage, "steps is 0, legal: 1 ... 9"}).message,
            "steps is 0, legal: 1 ... 9");
}

TEST_F(Jobs, ADrainCancelsWhatWaitsAndEndsTheWork) {
  queue_.add(job("a"));
  queue_.add(job("b"));
  work();
  wait_until_drawn(1);
  queue_.stop_running();  // not before the drain
  queue_.drain();
  EXPECT_EQ(queue_.add(job("c")), JobAnswer::kDraining);
  EXPECT_EQ(state("a"), JobState::kRunning);
  EXPECT_EQ(state("b"), JobState::kCancelled);
  EXPECT_EQ(queue_.find("b")->failure->code, "draining");
  queue_.stop_running();
  worker_.join();
  EXPECT_EQ(state("a"), JobState::kCancelled);
  EXPECT_EQ(queue_.find("a")->failure->code, "draining");
}

TEST_F(Jobs, OnlySoManyAreRemembered) {
  work();
  for (const char* id : {"a", "b", "c"}) {
    queue_.add(job(id));
    let_go(Outcome::kDone);
    wait_until_over(id);
  }
  EXPECT_FALSE(queue_.find("a"));
  const auto all = queue_.newest(9, "");
  ASSERT_EQ(all->jobs.size(), 2u);
  EXPECT_EQ(all->jobs[0].id, "c");
  EXPECT_FALSE(all->has_more);
  EXPECT_TRUE(queue_.newest(1, "")->has_more);
  EXPECT_EQ(queue_.newest(9, "c")->jobs[0].id, "b");
  EXPECT_TRUE(queue_.newest(9, "b")->jobs.empty());
  EXPECT_FALSE(queue_.newest(9, "a"));
}

// The same queue behind a server. The reader makes a job of every body but "bad".
class JobRoutes : public Jobs {
 protected:
  void SetUp() override {
    path_ = testing::TempDir() + "/weft_job_" + std::to_string(getpid()) + ".mp4";
    std::ofstream(path_) << "movie";
    ServerSettings settings;
    settings.routes =
        job_routes(queue_, {[](const std::string& body) {
                              if (body == "bad")
                                throw Error(ErrorKind::kUsage, "the job: bad, legal: good");
                              return job(body);
                            },
                            [this](const ServedJob& job) { removed_ = job.result->path; }});
    running_ = std::make_unique<RunningServer>(std::move(settings));
  }
  void TearDown() override {
    running_.reset();
    Jobs::TearDown();
    std::filesystem::remove(path_);
  }
  RawClient::Answer ask(const std::string& bytes) { return running_->ask(bytes); }
  static std::string code(const RawClient::Answer& answer) {
    return json::parse(answer.body).at("error").at("code");
  }

  std::unique_ptr<RunningServer> running_;
  std::string removed_;
};

TEST_F(JobRoutes, AJobFromItsRequestToItsResult) {
  const RawClient::Answer taken = ask(post("/v1/jobs", "a"));
  EXPECT_EQ(taken.status, 202);
  EXPECT_TRUE(taken.has("Location: /v1/jobs/a")) << taken.header;
  const json queued = json::parse(taken.body);
  EXPECT_EQ(queued.at("state"), "queued");
  EXPECT_EQ(queued.at("kind"), "video");
  EXPECT_EQ(queued.at("queue"), (json{{"position", 1}, {"depth", 1}}));
  EXPECT_EQ(queued.at("request"), (json{{"prompt", "a ball"}}));
  EXPECT_TRUE(queued.at("started").is_null() && queued.at("error").is_null());
  EXPECT_EQ(code(ask(get("/v1/jobs/a/content"))), "no_result");
  work();
  let_go(Outcome::kDone);
  wait_until_over("a");
  const RawClient::Answer shown = ask(get("/v1/jobs/a"));
  const json over = json::parse(shown.body);
  EXPECT_EQ(over.at("state"), "completed");
  EXPECT_EQ(over.at("progress").at("percent"), 100);
  EXPECT_EQ(over.at("queue"), nullptr);
  EXPECT_EQ(std::string(over.at("finished")).size(), 24u);
  const json& output = over.at("outputs").at(0);
  EXPECT_EQ(output.at("url"), "/v1/jobs/a/content");
  EXPECT_EQ(output.at("duration_s"), 5.0 / 8);
  EXPECT_EQ(shown.body.find(testing::TempDir()), std::string::npos) << shown.body;
  const size_t at = shown.header.find("ETag: ") + 6;
  const std::string tag = shown.header.substr(at, shown.header.find("\r\n", at) - at);
  EXPECT_EQ(ask(get("/v1/jobs/a", "If-None-Match: " + tag + "\r\n")).status, 304);
  const RawClient::Answer movie = ask(get("/v1/jobs/a/content", "Range: bytes=1-3\r\n"));
  EXPECT_EQ(movie.status, 206);
  EXPECT_EQ(movie.body, "ovi");
  EXPECT_TRUE(movie.has("ETag: \"cafe\"") && movie.has("Content-Type: video/mp4"));
}

// The middle picture, as long as the job runs.
TEST_F(JobRoutes, ARunningJobHasItsNewestPreview) {
  previews_ = true;
  EXPECT_EQ(ask(post("/v1/jobs", "a")).status, 202);
  EXPECT_EQ(code(ask(get("/v1/jobs/a/preview"))), "no_preview");
  work();
  json running = json::parse(ask(get("/v1/jobs/a")).body);
  while (running.at("preview").is_null()) running = json::parse(ask(get("/v1/jobs/a")).body);
  EXPECT_EQ(running.at("preview"),
            (json{{"step", 2}, {"steps", 5}, {"url", "/v1/jobs/a/preview"}}));
  const RawClient::Answer picture = ask(get("/v1/jobs/a/preview"));
  EXPECT_EQ(picture.status, 200);
  EXPECT_TRUE(picture.has("Content-Type: image/png")) << picture.header;
  EXPECT_NE(picture.header.find("ETag: "), std::string::npos) << picture.header;
  const Frame frame = decode_picture("preview", picture.body);
  EXPECT_EQ(frame.width, 6);
  EXPECT_EQ(frame.height, 2);
  let_go(Outcome::kDone);
  wait_until_over("a");
  EXPECT_EQ(json::parse(ask(get("/v1/jobs/a")).body).at("preview"), nullptr);
  EXPECT_EQ(code(ask(get("/v1/jobs/a/preview"))), "no_preview");
  EXPECT_EQ(ask(get("/v1/jobs/none/preview")).status, 404);
}

TEST_F(JobRoutes, RefusalsSayWhy) {
  const RawClient::Answer bad = ask(post("/v1/jobs", "bad"));
  EXPECT_EQ(bad.status, 400);
  EXPECT_NE(bad.body.find("the job: bad, legal: good"), std::string::npos) << bad.body;
  for (const char* id : {"a", "b", "c"}) EXPECT_EQ(ask(post("/v1/jobs", id)).status, 202);
  const RawClient::Answer full = ask(post("/v1/jobs", "d"));
  EXPECT_EQ(full.status, 429);
  EXPECT_TRUE(full.has("Retry-After: 10")) << full.header;
  for (const char* target : {"/v1/jobs/none", "/v1/jobs/none/content"})
    EXPECT_EQ(ask(get(target)).status, 404) << target;
  EXPECT_EQ(ask(post("/v1/jobs/none/cancel", "")).status, 404);
  const std::string host = " HTTP/1.1\r\nHost: localhost\r\n\r\n";
  EXPECT_EQ(ask("DELETE /v1/jobs/none" + host).status, 404);
  EXPECT_EQ(code(ask("DELETE /v1/jobs/a" + host)), "job_is_active");
  EXPECT_EQ(ask("PUT /v1/jobs/a" + host).status, 405);
  for (const char* query : {"limit=0", "limit=101", "limit=x", "limits=3", "after=none"}) {
    const RawClient::Answer answer = ask(get(std::string("/v1/jobs?") + query));
    EXPECT_EQ(answer.status, 400) << query;
    EXPECT_NE(answer.body.find("legal: "), std::string::npos) << answer.body;
  }
  queue_.drain();
  EXPECT_EQ(code(ask(post("/v1/jobs", "e"))), "draining");
}

TEST_F(JobRoutes, ListsCancelsAndForgets) {
  for (const char* id : {"a", "b"}) ask(post("/v1/jobs", id));
  json list = json::parse(ask(get("/v1/jobs?limit=1")).body);
  EXPECT_EQ(list.at("data").size(), 1u);
  EXPECT_EQ(list.at("data")[0].at("id"), "b");
  EXPECT_EQ(list.at("has_more"), true);
  list = json::parse(ask(get("/v1/jobs?after=b")).body);
  EXPECT_EQ(list.at("data")[0].at("id"), "a");
  const RawClient::Answer cancelled = ask(post("/v1/jobs/b/cancel", ""));
  EXPECT_EQ(cancelled.status, 200);
  EXPECT_EQ(json::parse(cancelled.body).at("state"), "cancelled");
  work();
  let_go(Outcome::kDone);
  wait_until_over("a");
  EXPECT_EQ(code(ask(post("/v1/jobs/a/cancel", ""))), "job_is_over");
  const RawClient::Answer removed = ask("DELETE /v1/jobs/a HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(removed.status, 200);
  EXPECT_EQ(removed_, path_);
  EXPECT_EQ(ask(get("/v1/jobs/a")).status, 404);
}

}  // namespace
}  // namespace weft
