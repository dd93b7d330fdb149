// The routes of jobs: how a job is sent, shown, followed, cancelled and forgotten.
#include "apps/serve/jobs/job_routes.h"

#include <gtest/gtest.h>

#include "apps/serve/page_routes.h"
#include "apps/serve/server_routes.h"
#include "io/picture/picture_reader.h"
#include "tests/apps/job_testing.h"

namespace weft {
namespace {

using JobRoutes = JobServer;

TEST_F(JobRoutes, AJobFromItsRequestToItsResult) {
  const RawClient::Answer taken = ask(post("/v1/jobs", "a"));
  EXPECT_EQ(taken.status, 202);
  EXPECT_TRUE(taken.has("Location: /v1/jobs/a")) << taken.header;
  const json queued = json::parse(taken.body);
  EXPECT_EQ(queued.at("state"), "queued");
  EXPECT_EQ(queued.at("kind"), "video");
  EXPECT_EQ(queued.at("attempt"), 0);
  EXPECT_EQ(queued.at("queue"), (json{{"position", 1}, {"depth", 1}}));
  EXPECT_EQ(queued.at("request"), (json{{"prompt", "a ball"}}));
  for (const char* field : {"started", "started_ms", "finished", "expires", "error"})
    EXPECT_TRUE(queued.at(field).is_null()) << field;
  EXPECT_EQ(code(ask(get("/v1/jobs/a/content"))), "no_result");
  work();
  let_go("a");
  const json over = wait_until_over("a");
  EXPECT_EQ(over.at("state"), "completed");
  EXPECT_EQ(over.at("attempt"), 1);
  EXPECT_EQ(over.at("progress").at("percent"), 100);
  EXPECT_EQ(over.at("queue"), nullptr);
  EXPECT_EQ(std::string(over.at("finished")).size(), 24u);
  EXPECT_LE(over.at("created_ms"), over.at("started_ms"));
  EXPECT_LE(over.at("started_ms"), over.at("finished_ms"));
  EXPECT_EQ(over.at("expires_ms"), over.at("finished_ms").get<int64_t>() + 24 * 3600 * 1000);
  const json& output = over.at("outputs").at(0);
  EXPECT_EQ(output.at("url"), "/v1/jobs/a/content");
  EXPECT_EQ(output.at("duration_s"), 5.0 / 8);
  const RawClient::Answer shown = ask(get("/v1/jobs/a"));
  EXPECT_EQ(shown.body.find(testing::TempDir()), std::string::npos) << shown.body;
  const size_t at = shown.header.find("ETag: ") + 6;
  const std::string tag = shown.header.substr(at, shown.header.find("\r\n", at) - at);
  EXPECT_EQ(ask(get("/v1/jobs/a", "If-None-Match: " + tag + "\r\n")).status, 304);
  const RawClient::Answer movie = ask(get("/v1/jobs/a/content", "Range: bytes=1-3\r\n"));
  EXPECT_EQ(movie.status, 206);
  EXPECT_EQ(movie.body, "ovi");
  EXPECT_TRUE(movie.has("ETag: \"cafe\"") && movie.has("Content-Type: video/mp4"));
}

TEST_F(JobRoutes, ProgressRisesTo100WithTheEndAlone) {
  ask(post("/v1/jobs", "a"));
  EXPECT_EQ(job("a").at("progress").at("percent"), 0);
  work();
  wait_until_drawn(1);
  const json progress = job("a").at("progress");
  EXPECT_EQ(progress.at("stage"), "denoise");
  EXPECT_EQ(progress.at("step"), 1);
  EXPECT_EQ(progress.at("steps"), 2);
  EXPECT_EQ(progress.at("s_per_step"), 0.5);
  EXPECT_GT(progress.at("percent"), 0);
  EXPECT_LT(progress.at("percent"), 100);
}

// The middle picture, as long as the job runs.
TEST_F(JobRoutes, ARunningJobHasItsNewestPreview) {
  previews_ = true;
  EXPECT_EQ(ask(post("/v1/jobs", "a")).status, 202);
  EXPECT_EQ(code(ask(get("/v1/jobs/a/preview"))), "no_preview");
  work();
  wait_until_drawn(1);
  EXPECT_EQ(job("a").at("preview"),
            (json{{"step", 2}, {"steps", 5}, {"url", "/v1/jobs/a/preview"}}));
  const RawClient::Answer picture = ask(get("/v1/jobs/a/preview"));
  EXPECT_EQ(picture.status, 200);
  EXPECT_TRUE(picture.has("Content-Type: image/png")) << picture.header;
  EXPECT_NE(picture.header.find("ETag: "), std::string::npos) << picture.header;
  const Frame frame = decode_picture("preview", picture.body);
  EXPECT_EQ(frame.width, 6);
  EXPECT_EQ(frame.height, 2);
  let_go("a");
  EXPECT_EQ(wait_until_over("a").at("preview"), nullptr);
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
  EXPECT_EQ(code(full), "queue_full");
  EXPECT_TRUE(full.has("Retry-After: 10")) << full.header;
  EXPECT_EQ(removed_, std::vector<std::string>{"d"});
  for (const char* target : {"/v1/jobs/none", "/v1/jobs/none/content", "/v1/jobs/none/events"})
    EXPECT_EQ(ask(get(target)).status, 404) << target;
  EXPECT_EQ(ask(post("/v1/jobs/none/cancel", "")).status, 404);
  const std::string host = " HTTP/1.1\r\nHost: localhost\r\n\r\n";
  EXPECT_EQ(ask("DELETE /v1/jobs/none" + host).status, 404);
  const RawClient::Answer active = ask("DELETE /v1/jobs/a" + host);
  EXPECT_EQ(code(active), "job_is_active");
  EXPECT_TRUE(active.has("x-should-retry: false")) << active.header;
  EXPECT_EQ(ask("PUT /v1/jobs/a" + host).status, 405);
  for (const char* query : {"limit=0", "limit=101", "limit=x", "limits=3", "after=none"}) {
    const RawClient::Answer answer = ask(get(std::string("/v1/jobs?") + query));
    EXPECT_EQ(answer.status, 400) << query;
    EXPECT_NE(answer.body.find("legal: "), std::string::npos) << answer.body;
  }
  for (const char* id : {"x", "-1", "1x"})
    EXPECT_EQ(ask(get("/v1/jobs/a/events", std::string("Last-Event-ID: ") + id + "\r\n")).status,
              400);
  draining_ = true;
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
  let_go("a");
  wait_until_over("a");
  EXPECT_EQ(drawn_, std::vector<std::string>{"a"});
  EXPECT_EQ(code(ask(post("/v1/jobs/a/cancel", ""))), "already_finished");
  EXPECT_EQ(ask("DELETE /v1/jobs/a HTTP/1.1\r\nHost: localhost\r\n\r\n").status, 200);
  EXPECT_EQ(removed_, std::vector<std::string>{"a"});
  EXPECT_EQ(ask(get("/v1/jobs/a")).status, 404);
}

TEST_F(JobRoutes, ARunningOneIsCancelledAndStaysSo) {
  ask(post("/v1/jobs", "a"));
  work();
  wait_until_drawn(1);
  EXPECT_EQ(ask(post("/v1/jobs/a/cancel", "")).status, 200);
  const json over = wait_until_over("a");
  EXPECT_EQ(over.at("state"), "cancelled");
  EXPECT_EQ(over.at("error"), nullptr);
  EXPECT_LT(over.at("progress").at("percent"), 100);
  EXPECT_EQ(ask(post("/v1/jobs/a/cancel", "")).status, 200);
}

// A job that waits is over at once; one that runs, once its team looks.
TEST_F(JobRoutes, CancelsAreQuick) {
  using Clock = std::chrono::steady_clock;
  const auto took = [&](const std::string& id) {
    const auto began = Clock::now();
    ask(post("/v1/jobs/" + id + "/cancel", ""));
    wait_until_over(id);
    return std::chrono::duration<double, std::milli>(Clock::now() - began).count();
  };
  for (const char* id : {"a", "b"}) ask(post("/v1/jobs", id));
  const double queued = took("b");
  work();
  wait_until_drawn(1);
  const double running = took("a");
  std::printf("a cancel takes %.1f ms of a queued job, %.1f ms of a running one\n", queued,
              running);
  EXPECT_LT(queued, 500);
  EXPECT_LT(running, 2000);
}

TEST_F(JobRoutes, AFailureOffersWhatThePlannerFoundAndTheNextIsDrawn) {
  for (const char* id : {"a", "b"}) ask(post("/v1/jobs", id));
  work();
  let_go("a", Outcome::kFails);
  let_go("b");
  const json failed = wait_until_over("a");
  EXPECT_EQ(failed.at("state"), "failed");
  EXPECT_EQ(failed.at("error"), (json{{"code", "memory"},
                                      {"message", "the job needs 9 GiB, 1 GiB are available."},
                                      {"hints", {"--layout tensor=4 (1.20 GiB)"}}}));
  EXPECT_EQ(wait_until_over("b").at("state"), "completed");
}

TEST_F(JobRoutes, ReplicasDrawSideBySide) {
  work(2);
  for (const char* id : {"a", "b"}) ask(post("/v1/jobs", id));
  wait_until_drawn(2);
  EXPECT_EQ(job("a").at("state"), "running");
  EXPECT_EQ(job("b").at("state"), "running");
  EXPECT_NE(metrics_.text().find("weft_jobs_running{replica=\"0\"} 1\n"), std::string::npos);
  EXPECT_NE(metrics_.text().find("weft_jobs_running{replica=\"1\"} 1\n"), std::string::npos);
  let_go("a", Outcome::kFails);
  EXPECT_EQ(wait_until_over("a").at("state"), "failed");
  EXPECT_EQ(job("b").at("state"), "running");  // it costs nobody else
  let_go("b");
  EXPECT_EQ(wait_until_over("b").at("state"), "completed");
  end_work();
  const std::string text = metrics_.text();
  EXPECT_NE(text.find("weft_job_wait_seconds_count{replica=\"0\"} 1\n"), std::string::npos) << text;
  EXPECT_NE(text.find("state=\"failed\"} 1\n"), std::string::npos) << text;
  EXPECT_NE(text.find("weft_jobs_running{replica=\"1\"} 0\n"), std::string::npos) << text;
}

// Error codes and statuses are what programs rely on.
TEST_F(JobRoutes, AKeyMakesARepeatedRequestTheSameJob) {
  const std::string key = "Idempotency-Key: one\r\n";
  EXPECT_EQ(ask(post_with(key, "a")).status, 202);
  const RawClient::Answer again = ask(post_with(key, "a"));
  EXPECT_EQ(again.status, 202);
  EXPECT_EQ(json::parse(again.body).at("id"), "a");
  EXPECT_EQ(json::parse(ask(get("/v1/jobs")).body).at("data").size(), 1u);
  const RawClient::Answer other = ask(post_with(key, "b"));
  EXPECT_EQ(other.status, 409);
  EXPECT_EQ(code(other), "idempotency_conflict");
  EXPECT_TRUE(other.has("x-should-retry: false")) << other.header;
  EXPECT_EQ(ask(get("/v1/jobs/b")).status, 404);
  // Another client's key is another one.
  EXPECT_EQ(ask(post_with(key + "Authorization: Bearer other\r\n", "b")).status, 202);
  EXPECT_EQ(ask(post_with("Idempotency-Key: " + std::string(256, 'x') + "\r\n", "c")).status, 400);
}

TEST_F(JobRoutes, AnOwnerHasAQueueOfItsOwn) {
  const std::string key = "Authorization: Bearer someone\r\n";
  for (const char* id : {"a", "b"}) EXPECT_EQ(ask(post_with(key, id)).status, 202);
  const RawClient::Answer full = ask(post_with(key, "c"));
  EXPECT_EQ(full.status, 429);
  EXPECT_EQ(code(full), "rate_limited");
  EXPECT_TRUE(full.has("Retry-After: 10"));
  EXPECT_EQ(ask(post_with("X-Api-Key: another\r\n", "d")).status, 202);
}

TEST_F(JobRoutes, ACallMayWaitForTheEnd) {
  work();
  RawClient client = running_->connect();
  client.send(post_with("Prefer: wait=60\r\n", "a"));
  wait_until_drawn(1);
  EXPECT_EQ(ask(get("/v1/jobs/a")).status, 200);
  let_go("a");
  const RawClient::Answer answer = client.answer();
  EXPECT_EQ(answer.status, 200);
  EXPECT_TRUE(answer.has("Location: /v1/jobs/a"));
  EXPECT_EQ(json::parse(answer.body).at("state"), "completed");
  // Its patience may end before.
  const RawClient::Answer early = ask(post_with("Prefer: respond-async, wait=0.1\r\n", "b"));
  EXPECT_EQ(early.status, 202);
  EXPECT_EQ(json::parse(early.body).at("id"), "b");
  let_go("b");
  EXPECT_EQ(wait_until_over("b").at("state"), "completed");
}

TEST_F(JobRoutes, AClientThatLeavesItsCallCancelsItsJobAlone) {
  work();
  {
    RawClient stays = running_->connect(), leaves = running_->connect();
    stays.send(post_with("Prefer: wait=60\r\n", "a"));
    wait_until_drawn(1);
    leaves.send(post_with("Prefer: wait=60\r\n", "b"));
    while (ask(get("/v1/jobs/b")).status != 200) std::this_thread::sleep_for(2ms);
    { const RawClient gone = std::move(leaves); }
    EXPECT_EQ(wait_until_over("b").at("state"), "cancelled");
    EXPECT_EQ(job("a").at("state"), "running");
    let_go("a");
    EXPECT_EQ(json::parse(stays.answer().body).at("state"), "completed");
  }
  // A client that did not wait may go.
  EXPECT_EQ(ask(post("/v1/jobs", "c")).status, 202);
  let_go("c");
  EXPECT_EQ(wait_until_over("c").at("state"), "completed");
}

struct HeardEvent {
  std::string type, id, data;
};

// The events of a stream until its end, or until so many have come.
std::vector<HeardEvent> read_events(RawClient& client, size_t most = 1000) {
  std::vector<HeardEvent> events;
  while (events.size() < most) {
    const std::string size = client.read_until("\r\n");
    if (size.empty()) break;
    if (size == "0\r\n") {
      client.read_until("\r\n");
      break;
    }
    std::istringstream lines(client.read(std::stoul(size, nullptr, 16)));
    client.read_until("\r\n");
    HeardEvent event;
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("event: ")) event.type = line.substr(7);
      if (line.starts_with("id: ")) event.id = line.substr(4);
      if (line.starts_with("data: ")) event.data += line.substr(6);
      if (line.starts_with("retry: ")) event = {"retry", "", line.substr(7)};
    }
    events.push_back(event);
  }
  return events;
}

TEST_F(JobRoutes, EventsTellAJobToItsEndAndAgain) {
  ask(post("/v1/jobs", "a"));
  RawClient client = running_->connect();
  client.send(get("/v1/jobs/a/events"));
  EXPECT_NE(client.read_until("\r\n\r\n").find("text/event-stream"), std::string::npos);
  work();
  wait_until_drawn(1);
  std::this_thread::sleep_for(600ms);  // time for progress
  let_go("a");
  const std::vector<HeardEvent> events = read_events(client);
  ASSERT_GE(events.size(), 5u);
  EXPECT_EQ(events[0].type, "retry");
  EXPECT_EQ(events[0].data, "2000");
  std::vector<std::string> states, numbers;
  int progress = 0;
  for (const HeardEvent& event : events) {
    if (event.type == "state") states.push_back(json::parse(event.data).at("state"));
    if (event.type == "progress") ++progress;
    if (!event.id.empty()) numbers.push_back(event.id);
  }
  EXPECT_EQ(states, (std::vector<std::string>{"queued", "running", "completed"}));
  EXPECT_EQ(numbers, (std::vector<std::string>{"1", "2", "3", "4"}));
  EXPECT_GE(progress, 1);
  EXPECT_LE(progress, 5);  // at most four a second
  EXPECT_EQ(events.back().type, "end");
  EXPECT_TRUE(client.ended());

  RawClient later = running_->connect();
  later.send(get("/v1/jobs/a/events", "Last-Event-ID: 2\r\n"));
  later.read_until("\r\n\r\n");
  const std::vector<HeardEvent> rest = read_events(later);
  ASSERT_EQ(rest.size(), 3u) << rest.back().type << rest.back().data;
  EXPECT_EQ(rest[1].id, "3");
  EXPECT_EQ(json::parse(rest[1].data).at("state"), "completed");
  EXPECT_EQ(rest[2].type, "end");
}

TEST_F(JobRoutes, AClientThatLeavesItsEventsChangesNothing) {
  ask(post("/v1/jobs", "a"));
  work();
  wait_until_drawn(1);
  {
    RawClient client = running_->connect();
    client.send(get("/v1/jobs/a/events"));
    client.read_until("running");
  }
  for (int i = 0; i < 2000 && running_->server.connections() > 0; ++i)
    std::this_thread::sleep_for(5ms);
  EXPECT_EQ(running_->server.connections(), 0);
  EXPECT_EQ(job("a").at("state"), "running");
}

class KeyedJobRoutes : public JobServer {
 protected:
  ServerSettings server_settings() override {
    ServerSettings settings;
    settings.api_key = kKey;
    return settings;
  }
  void add_routes(std::vector<Route>& routes) override {
    for (Route& route : server_routes(state_, kServe)) routes.push_back(std::move(route));
    routes.push_back(page_route("/", "jobs.html"));
    routes_ = routes;
  }
  ServerState state_;
  std::vector<Route> routes_;
};

// Without the key, every route but one is closed.
TEST_F(KeyedJobRoutes, OnlyTheLiveRouteIsOpen) {
  ASSERT_GT(routes_.size(), 10u);
  for (const Route& route : routes_) {
    std::string path = route.path;
    if (const size_t open = path.find('{'); open != std::string::npos)
      path.replace(open, path.find('}') - open + 1, "a");
    const auto status = [&](const std::string& headers) {
      RawClient client = running_->connect();
      client.send(route.method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers +
                  "Content-Length: 0\r\n\r\n");
      const std::string line = client.read_until("\r\n");
      return line.size() > 12 ? std::stoi(line.substr(9, 3)) : 0;
    };
    const bool is_open = path == "/health/live";
    EXPECT_EQ(route.open, is_open) << path;
    EXPECT_EQ(status(""), is_open ? 200 : 401) << route.method << path;
    EXPECT_EQ(status("Authorization: Bearer " + kKey + "x\r\n"), is_open ? 200 : 401) << path;
    EXPECT_NE(status("Authorization: Bearer " + kKey + "\r\n"), 401) << path;
  }
}

// Ids with slashes, codes or other letters reach no job, and so no file.
TEST_F(JobRoutes, PathsLeadNowhereElse) {
  ask(post("/v1/jobs", "a"));
  work();
  let_go("a");
  wait_until_over("a");
  for (const std::string id : {"..", "../a", "%2e%2e", "..%2fa", "/etc/passwd", "a/../a", "a%00",
                               "..\\a", "a.mp4", "C:a", "%2fetc%2fpasswd", "a;b", "."}) {
    for (const char* end : {"", "/content", "/preview", "/events"})
      EXPECT_EQ(ask(get("/v1/jobs/" + id + end)).status, 404) << id << end;
    EXPECT_EQ(ask("DELETE /v1/jobs/" + id + " HTTP/1.1\r\nHost: localhost\r\n\r\n").status, 404);
  }
  EXPECT_NE(ask(get(std::string("/v1/jobs/a\0b", 12))).status, 200);
  // Nor does a link in place of a result.
  std::filesystem::remove(path_);
  std::filesystem::create_symlink("/etc/passwd", path_);
  EXPECT_EQ(ask(get("/v1/jobs/a/content")).status, 404);
}

}  // namespace
}  // namespace weft
