// OpenAI's routes of images: what they take, answer and refuse, their events, and what becomes of
// the jobs of a client that leaves.
#include <gtest/gtest.h>

#include "apps/serve/jobs/sent_files.h"
#include "apps/serve/openai/image_routes.h"
#include "apps/serve/server_text.h"
#include "io/media/image.h"
#include "io/picture/picture_reader.h"
#include "tests/apps/job_testing.h"

namespace weft {
namespace {

class ImageRoutes : public JobServer {
 protected:
  void TearDown() override {
    JobServer::TearDown();
    for (const std::string& path : pictures_) std::filesystem::remove(path);
  }
  ServerSettings server_settings() override {
    ServerSettings settings;
    settings.upload_folder = testing::TempDir();
    return settings;
  }
  void add_routes(std::vector<Route>& routes) override {
    const JobServices services{.read = [this](const SentJob& sent) { return image_job(sent); },
                               .remove_files =
                                   [this](const NewJob& job) {
                                     const std::lock_guard lock(mutex_);
                                     removed_.push_back(job.id);
                                   },
                               .draining = [this] { return draining_.load(); }};
    for (Route& route : image_routes({.service = service_,
                        .desk = desk_,
                        .tasks = tasks_,
                        .jobs = services,
                        .model = model()}))
      routes.push_back(std::move(route));
  }
  virtual ClientModel model() { return {.ids = {"pocket", "dall-e-3"}, .name = "pocket"}; }

  NewJob image_job(const SentJob& sent) {
    const json fields = json::parse(sent.fields);
    sent_.push_back(fields);
    if (fields.at("prompt") == "bad")
      throw Error(ErrorKind::kUsage, "the job: prompt is 'bad', legal: good ones");
    if (fields.at("prompt") == "full") throw Error(ErrorKind::kOutput, "/disk cannot be written");
    if (fields.at("prompt") == "second is bad" && sent.number == 1)
      throw Error(ErrorKind::kUsage, "the job: reference_2 is '', legal: others");
    json resolved{{"prompt", "a red ball"}, {"num_frames", 1}, {"width", 8}, {"height", 4}};
    resolved["seed"] = fields.value("seed", 77) + sent.number;
    JobSpec spec;
    for (const json& url : fields.value("reference", json::array()))
      spec.request.references.push_back({.path = url});
    save_sent_files(spec, testing::TempDir() + "/" + sent.id, "the job", sent.files);
    for (const GivenPicture& picture : spec.request.references) {
      std::ifstream file(picture.path, std::ios::binary);
      files_.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
      pictures_.push_back(picture.path);
      resolved["reference"].push_back(picture.path);
    }
    return {.id = sent.id,
            .program = "p",
            .request = sent.fields,
            .resolved = resolved.dump(),
            .output = testing::TempDir() + "/" + sent.id + ".png"};
  }

  // Teams that draw a picture of their job's number in red.
  void draw_images(int teams = 1) {
    std::vector<DrawJob> draws(
        static_cast<size_t>(teams),
        [this](const StoredJob& job, ProgressListener& listener, const std::atomic<bool>& stop) {
          return draw_image(job.job, listener, stop);
        });
    replicas_.emplace(service_, job_metrics_, "p", std::move(draws));
  }
  std::string draw_image(const NewJob& job, ProgressListener& listener,
                         const std::atomic<bool>& stop) {
    for (int step = 2; previews_ && step <= steps_; ++step)
      listener.preview({.step = step, .total = 4, .frames = {Frame(2, 1)}});
    std::unique_lock lock(mutex_);
    drawn_.push_back(job.id);
    changed_.notify_all();
    while (outcomes_[job.id] == Outcome::kNone && !stop) changed_.wait_for(lock, 2ms);
    if (stop) throw Error(ErrorKind::kStopped, "stopped");
    if (outcomes_[job.id] == Outcome::kFails)
      throw Error(ErrorKind::kNonFinite, "step 3: NaN in the latent");
    Frame frame(8, 4);
    frame.rgb.assign(frame.rgb.size(), static_cast<uint8_t>(10 * pictures_.size()));
    write_png(job.output, frame, {}, Overwrite::kReplace);
    pictures_.push_back(job.output);
    return json{{"path", job.output}, {"content_type", "image/png"},
                {"sha256", "cafe"},   {"framehash", "f"},
                {"bytes", 5},         {"frames", 1}}
        .dump();
  }
  std::string drawn(size_t count) {  // the id of the job that began as the so many-th
    wait_until_drawn(count);
    const std::lock_guard lock(mutex_);
    return drawn_.at(count - 1);
  }
  void draw_all(size_t count) {
    for (size_t i = 1; i <= count; ++i) let_go(drawn(i));
  }

  static std::string generate(const json& body, const std::string& headers = "") {
    const std::string text = body.dump();
    return "POST /v1/images/generations HTTP/1.1\r\nHost: localhost:81\r\n" + headers +
           "Content-Length: " + std::to_string(text.size()) + "\r\n\r\n" + text;
  }
  static std::string error(const RawClient::Answer& answer, const char* field) {
    const json error = json::parse(answer.body).at("error");
    return error.at(field).is_null() ? "null" : error.at(field).get<std::string>();
  }
  std::string state(const std::string& id) {
    const std::optional<StoredJob> job = service_.store().find(id);
    return job ? to_string(job->state) : "none";
  }
  std::vector<std::string> ids() {
    std::vector<std::string> ids;
    const auto page = service_.store().list(100, "", false);
    for (const StoredJob& job : page->jobs) ids.push_back(job.job.id);
    return ids;
  }
  void await(const std::function<bool()>& what) {
    for (int i = 0; i < 4000 && !what(); ++i) std::this_thread::sleep_for(5ms);
    EXPECT_TRUE(what());
  }
  struct Event {
    std::string type;
    json data;
  };
  // The next event of a stream, each of which is a chunk; no type at the end.
  static Event event(RawClient& client) {
    const std::string size = client.read_until("\r\n");
    if (size.size() < 3 || size == "0\r\n") return {};
    const std::string text = client.read(std::stoul(size, nullptr, 16));
    client.read_until("\r\n");
    const std::string begin = "event: ", mark = "\ndata: ";
    const size_t data = text.find(mark);
    if (!text.starts_with(begin) || data == std::string::npos) return event(client);  // a comment
    return {text.substr(begin.size(), data - begin.size()),
            json::parse(text.substr(data + mark.size()))};
  }
  static Frame picture(const json& data) {
    return decode_picture("answer", *base64_bytes(data.at("b64_json").get<std::string>()));
  }

  std::vector<json> sent_;
  std::vector<std::string> files_;
  std::vector<std::string> pictures_;
  int steps_ = 2;  // the last one with a preview
  WorkQueue desk_{8}, tasks_{8};
};

TEST_F(ImageRoutes, SeveralPicturesInTheOrderOfTheirJobs) {
  RawClient client = running_->connect();
  client.send(generate({{"prompt", "a red ball"}, {"n", 3}, {"seed", 5}, {"quality", "hd"}}));
  draw_images(2);
  // The second is ready before the first.
  wait_until_drawn(2);
  const std::vector<std::string> jobs = ids();
  ASSERT_EQ(jobs.size(), 3u);
  let_go(jobs[1]);
  await([&] { return state(jobs[1]) == "completed"; });
  let_go(jobs[0]);
  let_go(jobs[2]);
  const RawClient::Answer answer = client.answer();
  EXPECT_EQ(answer.status, 200) << answer.body;
  const json body = json::parse(answer.body);
  EXPECT_NEAR(body.at("created"), std::time(nullptr), 100);
  EXPECT_EQ(body.at("size"), "8x4");
  EXPECT_EQ(body.at("quality"), "xhigh");
  EXPECT_EQ(body.at("output_format"), "png");
  EXPECT_EQ(body.at("background"), "opaque");
  EXPECT_EQ(body.at("usage").at("total_tokens"), 0);
  ASSERT_EQ(body.at("data").size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const json& data = body.at("data")[i];
    EXPECT_EQ(data.at("id"), jobs[i]);
    EXPECT_EQ(data.at("seed"), 5 + i);
    EXPECT_FALSE(data.contains("url"));
    EXPECT_EQ(sent_.at(i).at("num_frames"), 1);
    EXPECT_EQ(sent_.at(i).at("seed"), 5);
  }
  EXPECT_GT(picture(body.at("data")[0]).rgb[0], 0);
  EXPECT_EQ(picture(body.at("data")[1]).rgb[0], 0) << "the first that was drawn";
}

TEST_F(ImageRoutes, AddressesAreThoseOfTheServerAndServeThePicture) {
  RawClient client = running_->connect();
  client.send(generate({{"prompt", "a red ball"}, {"response_format", "url"}},
                       "X-Forwarded-Proto: https\r\n"));
  draw_images();
  draw_all(1);
  const json data = json::parse(client.answer().body).at("data")[0];
  EXPECT_EQ(data.at("url"), "https://localhost:81/v1/images/" + ids()[0] + "/content");
  EXPECT_FALSE(data.contains("b64_json"));
  const std::string path = "/v1/images/" + ids()[0] + "/content";
  const RawClient::Answer whole = ask(get(path));
  EXPECT_EQ(whole.status, 200);
  EXPECT_TRUE(whole.has("Content-Type: image/png") && whole.has("ETag: \"cafe\"")) << whole.header;
  EXPECT_EQ(decode_picture("answer", whole.body).width, 8);
  const RawClient::Answer part = ask(get(path, "Range: bytes=1-3\r\n"));
  EXPECT_EQ(part.status, 206);
  EXPECT_EQ(part.body, "PNG");
  EXPECT_EQ(ask(get(path, "If-None-Match: \"cafe\"\r\n")).status, 304);
  EXPECT_EQ(error(ask(get("/v1/images/image_0/content")), "code"), "not_found");
}

TEST_F(ImageRoutes, ADallEIsAnsweredWithAddressesUnlessTheClientAsksForOtherwise) {
  const auto names_address = [&](const json& fields, size_t job) {
    RawClient client = running_->connect();
    client.send(generate(fields));
    let_go(drawn(job));
    return json::parse(client.answer().body).at("data")[0].contains("url");
  };
  draw_images();
  json fields{{"prompt", "a red ball"}, {"model", "dall-e-3"}};
  EXPECT_TRUE(names_address(fields, 1));
  fields["response_format"] = "b64_json";
  EXPECT_FALSE(names_address(fields, 2));
}

TEST_F(ImageRoutes, OtherFormatsAreMadeOfThePicture) {
  RawClient client = running_->connect();
  client.send(generate({{"prompt", "a red ball"},
                        {"response_format", "url"},
                        {"output_format", "webp"},
                        {"output_compression", "80"}}));
  draw_images();
  const std::string path = "/v1/images/" + drawn(1) + "/content";
  EXPECT_EQ(error(ask(get(path)), "code"), "image_not_ready");
  draw_all(1);
  EXPECT_EQ(json::parse(client.answer().body).at("output_format"), "webp");
  const RawClient::Answer whole = ask(get(path));
  EXPECT_TRUE(whole.has("Content-Type: image/webp")) << whole.header;
  EXPECT_EQ(whole.body.substr(8, 4), "WEBP");
  const size_t at = whole.header.find("ETag: ") + 6;
  const std::string tag = whole.header.substr(at, whole.header.find("\r\n", at) - at);
  EXPECT_EQ(ask(get(path, "If-None-Match: " + tag + "\r\n")).status, 304);
}

TEST_F(ImageRoutes, RefusalsNameTheParameter) {
  struct Case {
    json fields;
    const char *param, *words;
  };
  const Case cases[] = {
      {{{"n", 0}}, "n", "1 ... 10"},
      {{{"n", 11}}, "n", "1 ... 10"},
      {{{"output_format", "gif"}}, "output_format", "png, jpeg, webp"},
      {{{"output_compression", 50}}, "output_compression", "100"},
      {{{"background", "transparent"}}, "background", "no transparency"},
      {{{"partial_images", 4}}, "partial_images", "0 ... 3"},
      {{{"stream", "perhaps"}}, "stream", "true, false"},
      {{{"stream", true}, {"response_format", "url"}}, "response_format", "b64_json"},
      {{{"moderation", "none"}}, "moderation", "auto, low"},
      {{{"quality", "best"}}, "quality", "lossless"},
      {{{"num_frames", 5}}, "num_frames", "1"},
      {{{"mask", "data:,"}}, "mask", "anew"},
      {{{"image", "data:image/png;base64,AA"}}, "image", "text alone"},
      {{{"prompt", nullptr}}, "prompt", "absent"},
      {{{"prompt", "bad"}}, "prompt", "good ones"},
  };
  for (const Case& each : cases) {
    json body{{"prompt", "a red ball"}};
    body.update(each.fields);
    const RawClient::Answer answer = ask(generate(body));
    EXPECT_EQ(answer.status, 400) << answer.body;
    EXPECT_TRUE(answer.has("x-should-retry: false")) << answer.header;
    EXPECT_EQ(error(answer, "type"), "invalid_request_error");
    EXPECT_EQ(error(answer, "param"), each.param) << answer.body;
    EXPECT_NE(error(answer, "message").find(each.words), std::string::npos) << answer.body;
  }
  const RawClient::Answer unknown = ask(generate({{"prompt", "x"}, {"outputformat", "png"}}));
  EXPECT_EQ(error(unknown, "code"), "unsupported_parameter");
  EXPECT_NE(unknown.body.find("output_format"), std::string::npos) << unknown.body;
  const std::string longest(300, 'x');
  EXPECT_EQ(error(ask(generate({{"prompt", "x"}, {longest, 1}})), "param"), longest.substr(0, 200));
  EXPECT_EQ(error(ask(generate({{"prompt", "x"}, {"seconds", "4"}})), "code"),
            "unsupported_parameter");
  EXPECT_EQ(ask(generate({{"prompt", "x"}, {"model", "other"}})).status, 404);
  const RawClient::Answer full = ask(generate({{"prompt", "full"}}));
  EXPECT_EQ(full.status, 507);
  EXPECT_EQ(error(full, "code"), "insufficient_storage");
  EXPECT_EQ(full.body.find("/disk"), std::string::npos) << full.body;
  draining_ = true;
  EXPECT_EQ(error(ask(generate({{"prompt", "x"}})), "code"), "draining");
  EXPECT_EQ(ids().size(), 0u);
}

TEST_F(ImageRoutes, AModelThatEditsNothingRefusesEdits) {
  const RawClient::Answer answer =
      ask(post("/v1/images/edits", R"({"prompt": "a hat", "image": "data:image/png;base64,AA"})"));
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(error(answer, "param"), "image");
  EXPECT_NE(error(answer, "message").find("pocket edits no pictures"), std::string::npos);
}

// Three jobs may wait.
TEST_F(ImageRoutes, AllJobsOfARequestFindPlaceOrNone) {
  RawClient first = running_->connect();
  first.send(generate({{"prompt", "a red ball"}, {"n", 2}}));
  await([&] { return ids().size() == 2; });
  const RawClient::Answer full = ask(generate({{"prompt", "a red ball"}, {"n", 2}}));
  EXPECT_EQ(full.status, 429);
  EXPECT_EQ(error(full, "code"), "queue_full");
  EXPECT_TRUE(full.has("Retry-After: 10")) << full.header;
  EXPECT_EQ(ids().size(), 2u);
  EXPECT_EQ(removed_.size(), 2u) << "the files of both";
}

TEST_F(ImageRoutes, AClientThatLeavesCancelsItsOwnJobsAlone) {
  RawClient other = running_->connect();
  other.send(generate({{"prompt", "a red ball"}}));
  await([&] { return ids().size() == 1; });
  {
    RawClient client = running_->connect();
    client.send(generate({{"prompt", "a red ball"}, {"n", 2}}));
    await([&] { return ids().size() == 3; });
  }
  const std::vector<std::string> jobs = ids();
  await([&] { return state(jobs[1]) == "cancelled" && state(jobs[2]) == "cancelled"; });
  EXPECT_EQ(state(jobs[0]), "queued");
  draw_images();
  draw_all(1);
  EXPECT_EQ(other.answer().status, 200);
}

TEST_F(ImageRoutes, WithAnIdempotencyKeyAClientComesAgainForItsPictures) {
  const std::string request =
      generate({{"prompt", "a red ball"}, {"n", 2}}, "Idempotency-Key: k1\r\n");
  {
    RawClient client = running_->connect();
    client.send(request);
    await([&] { return ids().size() == 2; });
  }
  draw_images();
  draw_all(2);
  const RawClient::Answer again = ask(request);
  EXPECT_EQ(again.status, 200) << again.body;
  EXPECT_EQ(json::parse(again.body).at("data")[1].at("id"), ids()[1]);
  EXPECT_EQ(ids().size(), 2u);
  const RawClient::Answer conflict =
      ask(generate({{"prompt", "another"}, {"n", 2}}, "Idempotency-Key: k1\r\n"));
  EXPECT_EQ(conflict.status, 409);
  EXPECT_EQ(error(conflict, "code"), "idempotency_conflict");
}

TEST_F(ImageRoutes, OneFailureFailsTheRequestAndEndsItsOtherJobs) {
  RawClient client = running_->connect();
  client.send(generate({{"prompt", "a red ball"}, {"n", 2}}));
  draw_images();
  let_go(drawn(1), Outcome::kFails);
  const RawClient::Answer answer = client.answer();
  EXPECT_EQ(answer.status, 500);
  EXPECT_EQ(error(answer, "code"), "non_finite");
  EXPECT_EQ(error(answer, "type"), "server_error");
  EXPECT_TRUE(answer.has("x-should-retry: false")) << answer.header;
  await([&] { return state(ids()[1]) == "cancelled"; });
}

TEST_F(ImageRoutes, ACancelledJobAndALateOneAreRefusals) {
  RawClient client = running_->connect();
  client.send(generate({{"prompt", "a red ball"}}));
  await([&] { return ids().size() == 1; });
  service_.cancel(ids()[0]);
  EXPECT_EQ(error(client.answer(), "code"), "cancelled");
  const RawClient::Answer late = ask(generate({{"prompt", "a ball"}}, "Prefer: wait=0.05\r\n"));
  EXPECT_EQ(late.status, 504);
  EXPECT_EQ(error(late, "code"), "deadline_exceeded");
  EXPECT_TRUE(late.has("x-should-retry: false")) << late.header;
  await([&] { return state(ids()[1]) == "cancelled"; });
}

TEST_F(ImageRoutes, AServerThatEndsAnswersAndEndsTheJobs) {
  RawClient client = running_->connect();
  client.send(generate({{"prompt", "a red ball"}}));
  await([&] { return ids().size() == 1; });
  running_->server.drain(5s);
  const RawClient::Answer answer = client.answer();
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(error(answer, "code"), "draining");
  await([&] { return state(ids()[0]) == "cancelled"; });
}

TEST_F(ImageRoutes, EventsOfPicturesOnTheirWayAndComplete) {
  previews_ = true;
  RawClient client = running_->connect();
  client.send(generate({{"prompt", "a red ball"},
                        {"n", 2},
                        {"stream", true},
                        {"partial_images", 2},
                        {"output_format", "jpeg"},
                        {"quality", "medium"}}));
  EXPECT_NE(client.read_until("\r\n\r\n").find("Content-Type: text/event-stream"),
            std::string::npos);
  draw_images();
  std::vector<Event> all;
  for (size_t i = 1; i <= 2; ++i) {
    all.push_back(event(client));  // before the job is let go
    let_go(drawn(i));
    all.push_back(event(client));
  }
  const char* types[] = {"image_generation.partial_image", "image_generation.completed"};
  for (size_t i = 0; i < all.size(); ++i) {
    const json& data = all[i].data;
    EXPECT_EQ(all[i].type, types[i % 2]);
    EXPECT_EQ(data.at("type"), types[i % 2]);
    EXPECT_EQ(data.at("image_index"), i / 2);
    EXPECT_EQ(data.at("size"), "8x4");
    EXPECT_EQ(data.at("quality"), "medium");
    EXPECT_EQ(data.at("background"), "opaque");
    EXPECT_EQ(data.at("output_format"), "jpeg");
    EXPECT_NEAR(data.at("created_at"), std::time(nullptr), 100);
    EXPECT_EQ(base64_bytes(data.at("b64_json").get<std::string>())->substr(0, 2), "\xff\xd8");
    EXPECT_EQ(picture(data).width, 8);
    EXPECT_EQ(data.contains("usage"), i % 2 == 1);
    EXPECT_EQ(data.contains("partial_image_index"), i % 2 == 0);
  }
  EXPECT_EQ(all[0].data.at("partial_image_index"), 0);
  EXPECT_EQ(event(client).type, "");
}

TEST_F(ImageRoutes, AFastJobHasAllPartialPicturesThatItsStepsAllow) {
  previews_ = true;
  steps_ = 4;
  RawClient client = running_->connect();
  client.send(generate({{"prompt", "a red ball"}, {"stream", true}, {"partial_images", 3}}));
  client.read_until("\r\n\r\n");
  await([&] { return ids().size() == 1; });
  let_go(ids()[0]);
  draw_images();
  for (int i = 0; i < 3; ++i) {
    const Event partial = event(client);
    ASSERT_EQ(partial.type, "image_generation.partial_image");
    EXPECT_EQ(partial.data.at("partial_image_index"), i);
  }
  EXPECT_EQ(event(client).type, "image_generation.completed");
}

TEST_F(ImageRoutes, RequestsBeyondThePlacesOfTheDeskAreRefusedWithoutAJob) {
  std::vector<RawClient> waiting;
  for (int i = 0; i < 2; ++i) {  // the queue has three places, which jobs take
    waiting.push_back(running_->connect());
    waiting.back().send(generate({{"prompt", "a red ball"}}));
    await([&] { return ids().size() == static_cast<size_t>(i + 1); });
  }
  std::vector<WorkQueue::Place> taken;
  while (WorkQueue::Place place = desk_.place()) taken.push_back(place);
  EXPECT_EQ(taken.size(), 6u);
  const RawClient::Answer refused = ask(generate({{"prompt", "a red ball"}}));
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(error(refused, "code"), "queue_full");
  EXPECT_NE(refused.header.find("Retry-After: "), std::string::npos) << refused.header;
  EXPECT_EQ(ids().size(), 2u);
  taken.pop_back();
  RawClient third = running_->connect();
  third.send(generate({{"prompt", "a red ball"}}));
  await([&] { return ids().size() == 3; });
  waiting.clear();  // their clients leave
  await([&] { return state(ids()[0]) == "cancelled" && state(ids()[1]) == "cancelled"; });
  await([&] {
    const WorkQueue::Place place = desk_.place();
    return place != nullptr;
  });
}

TEST_F(ImageRoutes, AFailureInAStreamIsAnEvent) {
  RawClient client = running_->connect();
  client.send(generate({{"prompt", "a red ball"}, {"stream", true}}));
  client.read_until("\r\n\r\n");
  draw_images();
  let_go(drawn(1), Outcome::kFails);
  const Event error = event(client);
  ASSERT_EQ(error.type, "error");
  EXPECT_EQ(error.data.at("error").at("code"), "non_finite");
  EXPECT_EQ(error.data.at("error").at("message"), "step 3: NaN in the latent");
  EXPECT_EQ(event(client).type, "");
}

TEST_F(ImageRoutes, ALostStreamEndsItsJob) {
  {
    RawClient client = running_->connect();
    client.send(generate({{"prompt", "a red ball"}, {"stream", true}}));
    client.read_until("\r\n\r\n");
  }
  await([&] { return state(ids()[0]) == "cancelled"; });
}

struct ImageEdits : ImageRoutes {
  // Files in the hidden folder for those of forms, and links of those of jobs.
  static int uploads() {
    int count = 0;
    std::error_code ignored;
    for (const auto& file : std::filesystem::directory_iterator(testing::TempDir(), ignored))
      count += file.path().extension() == ".linked";
    for (const auto& folder : std::filesystem::directory_iterator(testing::TempDir(), ignored))
      if (folder.path().filename().string().front() == '.' && folder.is_directory(ignored))
        for (const auto& file : std::filesystem::directory_iterator(folder.path(), ignored))
          count += file.path().extension() == ".bin";
    return count;
  }
  ClientModel model() override { return {.ids = {"klein"}, .name = "klein", .most_references = 2}; }
};

TEST_F(ImageEdits, PicturesOfAnEditAreTheReferencesOfEachJob) {
  const std::string url = "data:image/png;base64,AAAA";
  const json object{{"image_url", url}};
  RawClient client = running_->connect();
  client.send(post("/v1/images/edits",
                   json{{"prompt", "a hat"}, {"images", {object, object}}, {"n", 2}}.dump()));
  draw_images();
  draw_all(2);
  EXPECT_EQ(client.answer().status, 200);
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_EQ(sent_[0].at("reference"), (json{url, url}));
  EXPECT_FALSE(sent_[1].contains("reference")) << "what is decoded once is not sent again";
  EXPECT_EQ(files_, (std::vector<std::string>(4, std::string(3, '\0'))));
  for (size_t i = 0; i < 2; ++i)
    EXPECT_TRUE(std::filesystem::equivalent(pictures_.at(i), pictures_.at(i + 2)));
  const RawClient::Answer three =
      ask(post("/v1/images/edits", json{{"prompt", "a hat"}, {"image", {url, url, url}}}.dump()));
  EXPECT_EQ(error(three, "param"), "image");
  EXPECT_NE(error(three, "message").find("at most 2"), std::string::npos) << three.body;
  EXPECT_EQ(error(ask(post("/v1/images/edits", R"({"prompt": "a hat"})")), "param"), "image");
  const RawClient::Answer second = ask(
      post("/v1/images/edits", json{{"prompt", "second is bad"}, {"image", url}, {"n", 2}}.dump()));
  EXPECT_EQ(error(second, "param"), "image");
  EXPECT_EQ(error(second, "message").find("the job: image_2 is ''"), 0u) << second.body;
  EXPECT_EQ(removed_.size(), 1u) << "the files of the first";
  EXPECT_EQ(uploads(), 0);
}

// The files of a form belong to one job, so the others get links.
TEST_F(ImageEdits, FilesOfAFormAreThoseOfEveryJob) {
  std::string body;
  const auto part = [&](const std::string& head, const std::string& text) {
    body += "--b\r\nContent-Disposition: form-data; name=" + head + "\r\n\r\n" + text + "\r\n";
  };
  part("\"prompt\"", "a hat");
  part("\"n\"", "2");
  part("\"image[]\"; filename=\"a.png\"\r\nContent-Type: image/png", "first");
  part("\"image[]\"; filename=\"b.png\"\r\nContent-Type: image/png", "second");
  body += "--b--\r\n";
  RawClient client = running_->connect();
  client.send(
      "POST /v1/images/edits HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; "
      "boundary=b\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body);
  draw_images();
  draw_all(2);
  EXPECT_EQ(client.answer().status, 200);
  EXPECT_EQ(files_, (std::vector<std::string>{"first", "second", "first", "second"}));
  await([&] { return uploads() == 0; });
}

}  // namespace
}  // namespace weft
