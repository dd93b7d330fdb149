// The routes of OpenAI's video jobs, field by field, over jobs that a test lets go on.
#include <thread>

#include "apps/serve/jobs/job_events.h"
#include "apps/serve/openai/model_routes.h"
#include "apps/serve/openai/video_routes.h"
#include "io/media/image.h"
#include "io/media/video.h"
#include "tests/apps/job_testing.h"

namespace weft {
namespace {

const ClientModel kServed{.ids = {"wan2.2-t2v-a14b", "sora-2"}, .name = "Wan2.2-T2V-A14B"};

class OpenAiVideos : public JobServer {
 protected:
  void add_routes(std::vector<Route>& routes) override {
    for (Route& route : video_routes(service_, services_, kServed, tasks_)) routes.push_back(route);
    const ListedModel model{.ids = kServed.ids, .created = 7, .facts = {{"defaults", "x"}}};
    for (Route& route : model_routes(model)) routes.push_back(route);
  }

  WorkQueue tasks_{1};

  // Jobs of 65 frames of 1280x720 with the seed 42, unless they state others.
  NewJob read_sent(const SentJob& sent) const override {
    const json fields = json::parse(sent.fields);
    if (fields.contains("steps") && fields["steps"] == 0)
      throw Error(ErrorKind::kUsage, "the job: steps is 0, legal: 1 ... 200");
    if (fields.contains("cache"))
      throw Error(ErrorKind::kUsage, "--cache is 'a', but the method is b; legal: none");
    json resolved{{"prompt", fields.at("prompt")},
                  {"num_frames", 65},
                  {"fps", 16.0},
                  {"width", 1280},
                  {"height", 720},
                  {"seed", 42}};
    for (const char* name : {"num_frames", "width", "height", "seed"})
      if (fields.contains(name)) resolved[name] = fields[name];
    return {.id = sent.id,
            .program = "p",
            .request = json{{"prompt", fields.at("prompt")}}.dump(),
            .resolved = resolved.dump(),
            .output = path_};
  }

  json create(const std::string& body = R"({"prompt": "a kite"})") {
    const auto answer = ask(post("/v1/videos", body));
    EXPECT_EQ(answer.status, 200) << answer.body;
    return json::parse(answer.body);
  }
  std::string created() { return create().at("id"); }
  json video(const std::string& id) { return json::parse(ask(get("/v1/videos/" + id)).body); }
  RawClient::Answer content(const std::string& id, const std::string& query = "",
                            const std::string& headers = "") {
    return ask(get("/v1/videos/" + id + "/content" + query, headers));
  }
  RawClient::Answer remove(const std::string& id) {
    return ask("DELETE /v1/videos/" + id + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  }
  std::string completed() {
    const std::string id = created();
    let_go(id);
    wait_until_over(id);
    return id;
  }
};

TEST_F(OpenAiVideos, WalkThrough) {
  previews_ = false;
  const auto answer = ask(post(
      "/v1/videos", R"({"model":"wan2.2-t2v-a14b","prompt":"a red kite over dunes","seconds":"4",
      "size":"1280x720","seed":42,"num_inference_steps":40})"));
  ASSERT_EQ(answer.status, 200);
  const json made = json::parse(answer.body);
  const std::string id = made.at("id");
  EXPECT_TRUE(id.starts_with("video_"));
  EXPECT_EQ(id.size(), 30u);
  const int64_t at = made.at("created_at");
  EXPECT_LT(std::abs(at - time(nullptr)), 60);
  EXPECT_EQ(
      answer.body,
      R"({"id":")" + id +
          R"(","object":"video","model":"wan2.2-t2v-a14b","status":"queued","progress":0,"created_at":)" +
          std::to_string(at) +
          R"(,"completed_at":null,"expires_at":null,"seconds":"4","size":"1280x720",)"
          R"("prompt":"a red kite over dunes","remixed_from_video_id":null,"error":null,)"
          R"("seed":42,"num_frames":65,"fps":16})"
          "\n");
  EXPECT_EQ(video(id), made);

  work();
  wait_until_drawn(1);
  const auto running = ask(get("/v1/videos/" + id));
  const json now = json::parse(running.body);
  EXPECT_EQ(now.at("status"), "in_progress");
  EXPECT_TRUE(now.at("progress").is_number_integer());
  EXPECT_GT(now.at("progress"), 0);
  EXPECT_LT(now.at("progress"), 100);
  EXPECT_NE(running.header.find("openai-poll-after-ms: "), std::string::npos);
  const auto early = content(id);
  EXPECT_EQ(early.status, 404);
  EXPECT_TRUE(early.has("x-should-retry: false"));
  const std::string message =
      "video is in_progress (" + std::to_string(now.at("progress").get<int>()) + " %)";
  EXPECT_EQ(early.body, "{\"error\":{\"message\":\"" + message +
                            "\",\"type\":\"invalid_request_error\",\"param\":null,"
                            "\"code\":\"video_not_ready\"}}\n");

  let_go(id);
  wait_until_over(id);
  const auto over = ask(get("/v1/videos/" + id));
  const json done = json::parse(over.body);
  EXPECT_EQ(done.at("status"), "completed");
  EXPECT_EQ(done.at("progress"), 100);
  EXPECT_GE(done.at("completed_at"), at);
  EXPECT_EQ(done.at("expires_at").get<int64_t>(),
            done.at("completed_at").get<int64_t>() + 24 * 3600);
  EXPECT_EQ(over.header.find("openai-poll-after-ms"), std::string::npos);
  const auto whole = content(id);
  EXPECT_EQ(whole.status, 200);
  EXPECT_EQ(whole.body, "movie");
  for (const char* line :
       {"Content-Type: video/mp4", "Content-Length: 5", "ETag: \"cafe\"", "Accept-Ranges: bytes"})
    EXPECT_TRUE(whole.has(line)) << line << whole.header;
  EXPECT_NE(whole.header.find("Content-Disposition: attachment"), std::string::npos);
  const auto part = content(id, "?variant=video", "Range: bytes=1-2\r\n");
  EXPECT_EQ(part.status, 206);
  EXPECT_EQ(part.body, "ov");
  EXPECT_EQ(content(id, "", "Range: bytes=9-\r\n").status, 416);
  EXPECT_EQ(job(id).at("state"), "completed");

  const auto deleted = remove(id);
  EXPECT_EQ(deleted.status, 200);
  EXPECT_EQ(deleted.body,
            "{\"id\":\"" + id + "\",\"object\":\"video.deleted\",\"deleted\":true}\n");
  const auto gone = ask(get("/v1/videos/" + id));
  EXPECT_EQ(gone.status, 404);
  EXPECT_EQ(code(gone), "not_found");
  EXPECT_TRUE(gone.has("x-should-retry: false"));
  EXPECT_EQ(remove(id).status, 404);
  EXPECT_EQ(content(id).status, 404);
}

TEST_F(OpenAiVideos, RefusalsNameTheParameter) {
  const auto refused = [&](const std::string& body) {
    const auto answer = ask(post("/v1/videos", body));
    const json error = json::parse(answer.body).at("error");
    EXPECT_TRUE(answer.has("x-should-retry: false"));
    EXPECT_EQ(error.at("type"), "invalid_request_error");
    return std::to_string(answer.status) + " " + error.at("code").get<std::string>() + " " +
           (error.at("param").is_null() ? "null" : error.at("param").get<std::string>());
  };
  EXPECT_EQ(refused(R"({"prompt": "a", "sparkle": 1})"), "400 unsupported_parameter sparkle");
  EXPECT_EQ(refused(R"({"prompt": "a", "num_inference_steps": 0})"),
            "400 invalid_request num_inference_steps");
  EXPECT_EQ(refused(R"({"prompt": "a", "quality": "low"})"), "400 invalid_request quality");
  EXPECT_EQ(refused(R"({"prompt": "a", "model": "x"})"), "404 model_not_found model");
  EXPECT_EQ(refused(R"({"seconds": "4"})"), "400 invalid_request prompt");
  EXPECT_EQ(
      refused(R"({"prompt": "a", "input_reference": {"image_url": "data:image/png;base64,AA"}})"),
      "400 unsupported_parameter input_reference");
  EXPECT_EQ(refused("{"), "400 invalid_request null");
  EXPECT_EQ(code(ask(post("/v1/videos/edits", "{}"))), "unsupported_parameter");
  EXPECT_EQ(code(ask(post("/v1/videos/extensions", "{}"))), "unsupported_parameter");
  EXPECT_TRUE(service_.store().list(10, "")->jobs.empty());
}

TEST_F(OpenAiVideos, UnknownVideosAre404) {
  ask(post("/v1/jobs", R"({"prompt": "native"})"));
  const std::string native = service_.store().list(1, "")->jobs.at(0).job.id;
  for (const std::string& id :
       {std::string("video_0123456789abcdef01234567"), std::string("x"), native}) {
    EXPECT_EQ(code(ask(get("/v1/videos/" + id))), "not_found");
    EXPECT_EQ(code(content(id)), "not_found");
    EXPECT_EQ(code(remove(id)), "not_found");
    EXPECT_EQ(code(ask(post("/v1/videos/" + id + "/remix", R"({"prompt": "a"})"))), "not_found");
  }
  EXPECT_EQ(service_.store().list(10, "")->jobs.size(), 1u);
}

TEST_F(OpenAiVideos, ListsInBothOrders) {
  work();
  std::vector<std::string> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(completed());
  service_.drain();
  ask(post("/v1/jobs", R"({"prompt": "native"})"));
  const auto page = [&](const std::string& query) {
    return json::parse(ask(get("/v1/videos" + query)).body);
  };
  const json newest = page("");
  EXPECT_EQ(newest.at("object"), "list");
  ASSERT_EQ(newest.at("data").size(), 5u);
  EXPECT_EQ(newest.at("first_id"), ids[4]);
  EXPECT_EQ(newest.at("last_id"), ids[0]);
  EXPECT_EQ(newest.at("has_more"), false);
  EXPECT_EQ(newest.at("data")[0], video(ids[4]));
  for (const bool ascending : {true, false}) {
    std::vector<std::string> seen;
    std::string after;
    for (bool more = true; more;) {
      const json next = page("?limit=2&order=" + std::string(ascending ? "asc" : "desc") +
                             (after.empty() ? "" : "&after=" + after));
      for (const json& each : next.at("data")) seen.push_back(each.at("id"));
      after = next.at("last_id");
      more = next.at("has_more");
    }
    if (!ascending) std::ranges::reverse(seen);
    EXPECT_EQ(seen, ids);
  }
  // A client that deletes what it has listed goes on after it.
  EXPECT_EQ(remove(ids[2]).status, 200);
  EXPECT_EQ(page("?limit=1&after=" + ids[2]).at("first_id"), ids[1]);
  EXPECT_EQ(page("?limit=1&order=asc&after=" + ids[2]).at("first_id"), ids[3]);
  const json none = page("?after=" + ids[0]);
  EXPECT_TRUE(none.at("data").empty());
  EXPECT_TRUE(none.at("last_id").is_null());
  for (const char* query : {"?limit=0", "?limit=101", "?limit=x", "?order=up", "?after=video_x"})
    EXPECT_EQ(code(ask(get(std::string("/v1/videos") + query))), "invalid_request") << query;
  EXPECT_EQ(code(ask(get("/v1/videos?offset=1"))), "unsupported_parameter");
}

TEST_F(OpenAiVideos, DeletesJobsThatWaitOrRun) {
  work();
  const std::string runs = created();
  wait_until_drawn(1);
  const std::string waits = created();
  EXPECT_EQ(remove(waits).status, 200);
  EXPECT_EQ(ask(get("/v1/videos/" + waits)).status, 404);
  EXPECT_EQ(remove(runs).status, 200);
  for (const char* route : {"/v1/videos/", "/v1/jobs/"})
    EXPECT_EQ(ask(get(route + runs)).status, 404) << route;
  EXPECT_EQ(json::parse(ask(get("/v1/videos")).body).at("data").size(), 0u);
  for (bool both = false; !both; std::this_thread::sleep_for(2ms)) {
    const std::lock_guard lock(mutex_);
    both = removed_ == std::vector<std::string>{waits, runs};
  }
  EXPECT_FALSE(service_.store().find(runs));
}

TEST_F(OpenAiVideos, RemixKeepsTheSettings) {
  work();
  const std::string id = create(R"({"prompt": "a kite", "seconds": "4", "model": "sora-2",
                                    "num_inference_steps": 7, "seed": 99})")
                             .at("id");
  EXPECT_EQ(code(ask(post("/v1/videos/" + id + "/remix", R"({"prompt": "b"})"))),
            "video_not_ready");
  let_go(id);
  wait_until_over(id);
  const auto answer = ask(post("/v1/videos/" + id + "/remix", R"({"prompt": "a blue kite"})"));
  ASSERT_EQ(answer.status, 200) << answer.body;
  const json remix = json::parse(answer.body);
  EXPECT_NE(remix.at("id"), id);
  EXPECT_EQ(remix.at("remixed_from_video_id"), id);
  for (const auto& [name, value] : std::map<std::string, json>{{"prompt", "a blue kite"},
                                                               {"seed", 99},
                                                               {"seconds", "4"},
                                                               {"model", "sora-2"},
                                                               {"num_frames", 65}})
    EXPECT_EQ(remix.at(name), value) << name;
  EXPECT_NE(service_.find(remix.at("id"))->job.client.find(R"(\"steps\":7)"), std::string::npos);
  const json other = json::parse(
      ask(post("/v1/videos/" + id + "/remix", R"({"prompt": "b", "seed": 3, "size": "64x64"})"))
          .body);
  EXPECT_EQ(other.at("seed"), 3);
  EXPECT_EQ(code(ask(post("/v1/videos/" + id + "/remix", "{}"))), "invalid_request");
}

TEST_F(OpenAiVideos, FailedJobsHaveCodesOfClients) {
  work();
  const std::string fails = created();
  let_go(fails, Outcome::kFails);
  wait_until_over(fails);
  const json failed = video(fails);
  EXPECT_EQ(failed.at("status"), "failed");
  EXPECT_LT(failed.at("progress"), 100);
  EXPECT_EQ(failed.at("error").at("code"), "out_of_memory");
  EXPECT_EQ(failed.at("error").at("message"), "the job needs 9 GiB, 1 GiB are available.");
  EXPECT_EQ(failed.at("error").size(), 2u);
  EXPECT_EQ(code(content(fails)), "video_not_ready");
  const std::string cancelled = created();
  wait_until_drawn(2);
  ask(post("/v1/jobs/" + cancelled + "/cancel", ""));
  wait_until_over(cancelled);
  EXPECT_EQ(video(cancelled).at("status"), "failed");
  EXPECT_EQ(video(cancelled).at("error").at("code"), "cancelled");
}

TEST_F(OpenAiVideos, AnIdempotencyKeyIsOneVideo) {
  const auto send = [&](const std::string& body) {
    return ask(
        "POST /v1/videos HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: k\r\nContent-Length: " +
        std::to_string(body.size()) + "\r\n\r\n" + body);
  };
  const auto first = send(R"({"prompt": "a"})"), again = send(R"({"prompt": "a"})");
  EXPECT_EQ(first.body, again.body);
  EXPECT_EQ(send(R"({"prompt": "b"})").status, 409);
}

TEST_F(OpenAiVideos, SyncAnswersWithTheVideo) {
  work();
  RawClient client = running_->connect();
  client.send(post("/v1/videos/sync", R"({"prompt": "a"})"));
  wait_until_drawn(1);
  let_go(drawn_.at(0));
  const auto answer = client.answer();
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, "movie");
  EXPECT_TRUE(answer.has("Location: /v1/videos/" + drawn_.at(0)));
}

// A job with an Idempotency-Key goes on without its client, who comes again for it.
TEST_F(OpenAiVideos, ALostSyncEndsItsJobUnlessItHasAKey) {
  const auto lose = [&](const std::string& headers) {
    RawClient client = running_->connect();
    const size_t before = service_.store().list(10, "")->jobs.size();
    client.send("POST /v1/videos/sync HTTP/1.1\r\nHost: localhost\r\n" + headers +
                "Content-Length: 15\r\n\r\n{\"prompt\": \"a\"}");
    while (service_.store().list(10, "")->jobs.size() == before) std::this_thread::sleep_for(2ms);
    return service_.store().list(1, "")->jobs.at(0).job.id;
  };
  const std::string kept = lose("Idempotency-Key: k\r\n"), lost = lose("");
  wait_until_over(lost);
  EXPECT_EQ(job(lost).at("state"), "cancelled");
  EXPECT_EQ(job(kept).at("state"), "queued");
}

// A job that nobody sees end, as it is removed, is answered for all the same.
TEST_F(OpenAiVideos, SyncOfACancelledOrARemovedJobIsAConflict) {
  RawClient client = running_->connect();
  client.send(post("/v1/videos/sync", R"({"prompt": "a"})"));
  while (service_.store().list(1, "")->jobs.empty()) std::this_thread::sleep_for(2ms);
  service_.cancel(service_.store().list(1, "")->jobs.at(0).job.id);
  const auto answer = client.answer();
  EXPECT_EQ(answer.status, 409);
  EXPECT_EQ(code(answer), "cancelled");
  const HttpResponse gone =
      when_over(service_, "video_0", {}, 1, true, [] { return HttpResponse{.status = 404}; });
  int status = 0;
  gone.later([&](const HttpResponse& given) { status = given.status; });
  EXPECT_EQ(status, 404);
}

TEST_F(OpenAiVideos, ThumbnailsAreAFrameOfTheClip) {
  if (!media_built()) GTEST_SKIP() << "built without media";
  work();
  const std::string id = completed();
  EXPECT_EQ(code(content(id, "?variant=thumbnail")), "not_found");  // "movie" is none
  EXPECT_EQ(code(content(id, "?variant=spritesheet")), "unsupported_parameter");
  EXPECT_EQ(code(content(id, "?variant=x")), "invalid_request");
  std::filesystem::remove(path_);
  VideoSettings settings;
  settings.width = 64;
  settings.height = 32;
  const auto sink = make_mp4_sink(path_, settings, Overwrite::kRefuse);
  for (int i = 0; i < 5; ++i) {
    Frame frame(64, 32);
    std::ranges::fill(frame.rgb, static_cast<uint8_t>(50 * i));
    sink->push(frame);
  }
  sink->finish();
  const auto answer = content(id, "?variant=thumbnail");
  EXPECT_EQ(answer.status, 200);
  EXPECT_TRUE(answer.has("Content-Type: image/png"));
  EXPECT_TRUE(answer.has("ETag: \"cafe-thumbnail\""));
  const StoredPicture picture = decode_png("the answer", answer.body);
  EXPECT_EQ(picture.width, 64);
  EXPECT_EQ(picture.height, 32);
  EXPECT_NEAR(picture.pixels.at(3000), 100, 6);  // of the frame in the middle
  EXPECT_EQ(content(id, "?variant=thumbnail", "If-None-Match: \"cafe-thumbnail\"\r\n").status, 304);
  WorkQueue::Place place;  // the only one, which an answered request leaves soon
  while (!(place = tasks_.place())) std::this_thread::yield();
  const auto full = content(id, "?variant=thumbnail");
  EXPECT_EQ(full.status, 429);
  EXPECT_EQ(code(full), "queue_full");
  EXPECT_TRUE(full.has("Retry-After: 5")) << full.header;
}

TEST_F(OpenAiVideos, ListsTheModelByEachOfItsIds) {
  const json list = json::parse(ask(get("/v1/models")).body);
  EXPECT_EQ(list.at("object"), "list");
  ASSERT_EQ(list.at("data").size(), 2u);
  EXPECT_EQ(list.at("data")[0],
            json::parse(R"({"id": "wan2.2-t2v-a14b", "object": "model", "created": 7,
      "owned_by": "weft", "root": "wan2.2-t2v-a14b", "defaults": "x"})"));
  EXPECT_EQ(json::parse(ask(get("/v1/models/sora-2")).body).at("id"), "sora-2");
  EXPECT_EQ(json::parse(ask(get("/v1/models/wan2.2-t2v-a14b")).body), list.at("data")[0]);
  EXPECT_EQ(code(ask(get("/v1/models/dall-e-3"))), "model_not_found");
}

}  // namespace
}  // namespace weft
