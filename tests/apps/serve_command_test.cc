// weft serve: the binary as a server, from the first job to the last.
#include <fcntl.h>

#include <algorithm>
#include <csignal>
#include <thread>

#include "tests/apps/cli_testing.h"
#include "tests/apps/serve_testing.h"

namespace weft {
namespace {

using nlohmann::json;
using test::Cli, test::fs::exists, test::kPocket, test::Outcome, test::run;

// Seconds of work, so that it can be cancelled.
const std::string kLong = R"({"prompt": "a red ball", "num_frames": 33, "steps": 1000})";
const std::string kShort =
    R"({"prompt": "a red ball", "num_frames": 5, "steps": 2, "seed": 7, "size": "64x64"})";

// The server keeps them beside the results.
const std::string kOwner = "out/.weft-store", kStore = "out/jobs.sqlite",
                  kLock = "out/jobs.sqlite.server";

class ServeCommand : public Cli {
 protected:
  void TearDown() override {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    Cli::TearDown();
  }

  // Starts the server on a free port. It has told its address, so it is ready.
  void start(std::vector<std::string> more = {}) {
    if (std::ranges::find(more, "--max-steps") == more.end()) {
      more.emplace_back("--max-steps");
      more.emplace_back("1000");
    }
    std::vector<std::string> words{WEFT_BINARY, "serve",       "--model",  kPocket,
                                   "--listen",  "127.0.0.1:0", "--json",   "--threads",
                                   "1",         "-o",          path("out")};
    for (std::string& word : more) words.push_back(std::move(word));
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ends[1], STDOUT_FILENO);
      dup2(open(path("log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600), STDERR_FILENO);
      execv(WEFT_BINARY, arguments.data());
      _exit(127);
    }
    close(ends[1]);
    std::string line;
    for (char c; read(ends[0], &c, 1) == 1 && c != '\n';) line += c;
    close(ends[0]);
    ASSERT_TRUE(line.starts_with('{')) << line << log();
    port_ = json::parse(line).at("port");
    EXPECT_EQ(json::parse(line).at("address"), "http://127.0.0.1:" + std::to_string(port_) + "/");
  }
  // The exit code of the server after a signal.
  int end(int signal = SIGTERM) {
    if (signal) kill(pid_, signal);
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  std::string log() const {
    std::ifstream file(path("log"));
    return {std::istreambuf_iterator<char>(file), {}};
  }
  RawClient::Answer ask(const std::string& bytes) const { return RawClient(port_).ask(bytes); }
  std::string submit(const std::string& body) {
    const RawClient::Answer answer = ask(post("/v1/jobs", body));
    EXPECT_EQ(answer.status, 202) << answer.body;
    return answer.status == 202 ? json::parse(answer.body).at("id") : json("");
  }
  json job(const std::string& id) { return json::parse(ask(get("/v1/jobs/" + id)).body); }
  // Asks for the job until `enough` says that it was what the test waits for.
  template <class Enough>
  json wait_for(const std::string& id, Enough enough) {
    for (;;) {
      const json now = job(id);
      if (enough(now)) return now;
      std::this_thread::sleep_for(20ms);
    }
  }
  json wait_for_state(const std::string& id, const std::string& state) {
    return wait_for(id, [&](const json& now) {
      return now.at("state") == state || !now.at("finished").is_null();
    });
  }
  RawClient::Answer cancel(const std::string& id) {
    return ask(post("/v1/jobs/" + id + "/cancel", ""));
  }

  pid_t pid_ = -1;
  uint16_t port_ = 0;
};

TEST_F(ServeCommand, DrawsAJobThatWeftGenerateWouldDraw) {
  start();
  const std::string id = submit(kShort);
  double percent = -1;
  const json over = wait_for(id, [&](const json& now) {
    const double before = std::exchange(percent, now.at("progress").at("percent"));
    EXPECT_GE(percent, before);
    EXPECT_EQ(percent == 100, now.at("state") == "completed");
    return !now.at("finished").is_null();
  });
  ASSERT_EQ(over.at("state"), "completed") << over << log();
  EXPECT_EQ(ask(get("/health/ready")).status, 200);
  EXPECT_EQ(over.at("request").at("steps"), 2);
  EXPECT_EQ(over.at("resolved").at("seed"), 7);
  const json output = over.at("outputs").at(0);
  EXPECT_EQ(output.at("width"), 64);
  EXPECT_EQ(output.at("frames"), 5);
  const RawClient::Answer movie = ask(get(output.at("url")));
  EXPECT_EQ(movie.status, 200);
  EXPECT_EQ(movie.body.size(), output.at("bytes"));
  EXPECT_EQ(movie.body.substr(4, 4), "ftyp");
  EXPECT_TRUE(movie.has("Content-Type: video/mp4"));
  const RawClient::Answer part = ask(get(output.at("url"), "Range: bytes=4-7\r\n"));
  EXPECT_EQ(part.status, 206);
  EXPECT_EQ(part.body, "ftyp");
  const Outcome same = run("generate -q --model " + kPocket +
                           " --threads 1 -p 'a red ball' --num-frames 5 --steps 2 --seed 7 --size "
                           "64x64 -o " +
                           path("same.mp4"));
  EXPECT_NE(same.out.find(output.at("framehash").get<std::string>()), std::string::npos);

  const std::string metrics = ask(get("/metrics")).body;
  for (const char* line :
       {"weft_jobs_queued 0\n", "weft_jobs_running{replica=\"0\"} 0\n",
        "weft_requests_total{status=\"202\"} 1\n",
        "weft_job_duration_seconds_count{replica=\"0\",state=\"completed\"} 1\n"})
    EXPECT_NE(metrics.find(line), std::string::npos) << line;
  EXPECT_TRUE(exists(path("out/" + id + ".mp4")) && exists(path("out/" + id + ".mp4.json")));
  EXPECT_EQ(ask("DELETE /v1/jobs/" + id + " HTTP/1.1\r\nHost: localhost\r\n\r\n").status, 200);
  EXPECT_EQ(end(), 0) << log();
  EXPECT_EQ(files(), (std::vector<std::string>{"log", "out", kOwner, kStore, kLock, "same.mp4",
                                               "same.mp4.json"}));
  for (const json& line : test::json_lines(log())) EXPECT_TRUE(line.contains("event")) << line;
  EXPECT_EQ(log().find("red ball"), std::string::npos);
  EXPECT_EQ(log().find(folder_), std::string::npos) << log();
}

TEST_F(ServeCommand, BadBodiesAreRefusedWithWhatIsLegal) {
  start();
  const std::map<std::string, std::string> bodies = {
      {"", "no JSON object"},
      {"a ball", "no JSON object"},
      {"[1]", "no JSON object"},
      {"{\"prompt\": \"x\"", "the job"},
      {"{\"prompt\": \"x\", \"prompt\": \"y\"}", "prompt"},
      {"{}", "has no prompt; legal: a text"},
      {R"({"prompt": "x", "stepz": 3})", "stepz is no field of a job; did you mean steps?"},
      {R"({"prompt": "x", "steps": 0})", "steps is 0, legal: 1 ... 1000"},
      {R"({"prompt": "x", "width": 41})", "width is 41, legal: multiples of"},
      {R"({"prompt": "x", "num_frames": 6})", "legal: 4n+1"},
      {R"({"prompt": "x", "output": "a.mp4"})", "output is 'a.mp4', legal: none"},
      {R"({"prompt": "x", "output": "/etc/a.mp4"})", "output is '/etc/a.mp4', legal: "},
      {R"({"prompt": "x", "id": "mine"})", "id is 'mine', legal: none"},
      {R"({"prompt": "x", "endless": true})", "endless is 'true', legal: none"},
      {R"({"prompt": "x", "model": "sora-2"})", "model is 'sora-2', legal: "}};
  for (const auto& [body, message] : bodies) {
    const RawClient::Answer answer = ask(post("/v1/jobs", body));
    EXPECT_EQ(answer.status, 400) << body;
    const std::string told = json::parse(answer.body).at("error").at("message");
    EXPECT_NE(told.find(message), std::string::npos) << body << ": " << told;
  }
  EXPECT_EQ(json::parse(ask(get("/v1/jobs")).body).at("data"), json::array());
  // A text never names a file of the server.
  const json text = job(submit(
      R"({"prompt": "@/etc/passwd", "negative_prompt": "@/etc/passwd", "num_frames": 1, "steps": 1})"));
  EXPECT_EQ(text.at("resolved").at("prompt"), "@/etc/passwd");
  EXPECT_EQ(text.at("resolved").at("negative_prompt"), "@/etc/passwd");
  EXPECT_EQ(end(), 0);
}

TEST_F(ServeCommand, ACancelledJobLeavesNothingAndTheNextIsDrawn) {
  start();
  const std::string first = submit(kLong), second = submit(kLong), third = submit(kShort);
  wait_for(first, [](const json& now) { return now.at("progress").at("step") > 0; });
  EXPECT_EQ(job(second).at("queue"), (json{{"position", 1}, {"depth", 2}}));
  EXPECT_EQ(cancel(second).status, 200);
  EXPECT_EQ(job(second).at("state"), "cancelled");
  EXPECT_EQ(cancel(first).status, 200);
  const json over = wait_for_state(first, "cancelled");
  EXPECT_EQ(over.at("state"), "cancelled");
  EXPECT_EQ(over.at("error"), nullptr);
  EXPECT_EQ(over.at("outputs"), json::array());
  EXPECT_EQ(wait_for_state(third, "completed").at("state"), "completed");
  EXPECT_EQ(end(), 0);
  EXPECT_EQ(files(), (std::vector<std::string>{"log", "out", kOwner, "out/" + third + ".mp4",
                                               "out/" + third + ".mp4.json", kStore, kLock}));
}

TEST_F(ServeCommand, RanksGoOnAfterTheirJobs) {
  start({"--layout", "ulysses=2"});
  std::vector<std::string> hashes;
  for (const std::string& body : {kShort, kShort, kLong, kShort}) {
    const std::string id = submit(body);
    if (body == kLong) {
      wait_for(id, [](const json& now) { return now.at("progress").at("step") > 0; });
      EXPECT_EQ(cancel(id).status, 200);
      EXPECT_EQ(wait_for_state(id, "cancelled").at("state"), "cancelled");
      continue;
    }
    const json over = wait_for_state(id, "completed");
    ASSERT_EQ(over.at("state"), "completed") << over << log();
    hashes.push_back(over.at("outputs").at(0).at("framehash"));
  }
  EXPECT_EQ(hashes, std::vector<std::string>(3, hashes.front()));
  // One token cannot be split over two ranks; the others are drawn all the same.
  const std::string id = submit(R"({"prompt": "x", "size": "16x16", "num_frames": 1, "steps": 1})");
  const json refused = wait_for_state(id, "failed");
  EXPECT_EQ(refused.at("state"), "failed") << refused;
  EXPECT_EQ(wait_for_state(submit(kShort), "completed").at("state"), "completed");
  EXPECT_EQ(end(), 0) << log();
}

TEST_F(ServeCommand, AJobThatDoesNotFitIsOfferedWhatWould) {
  start({"--memory-limit", "60M"});
  const std::string large = R"({"prompt": "x", "size": "512x512", "num_frames": 33, "seed": )";
  for (const char* route : {"/v1/jobs", "/v1/videos"})
    for (const char* seed : {"1}", "2}"}) {  // what is known of the first holds for the second
      const RawClient::Answer refused = ask(post(route, large + seed));
      ASSERT_EQ(refused.status, 422) << refused.body;
      EXPECT_TRUE(refused.has("x-should-retry: false")) << refused.header;
      const json error = json::parse(refused.body).at("error");
      EXPECT_EQ(error.at("code"), "does_not_fit");
      EXPECT_TRUE(error.at("message").get<std::string>().ends_with("are available.")) << error;
      EXPECT_GE(error.at("hints").size(), 2u) << error;
      EXPECT_LE(error.at("hints").size(), 3u) << error;
      EXPECT_TRUE(std::string(error.at("hints")[0]).starts_with("--")) << error;
    }
  EXPECT_EQ(json::parse(ask(get("/v1/jobs")).body).at("data"), json::array());
  const RawClient::Answer picture =
      ask(post("/v1/images/generations", R"({"prompt": "x", "size": "4096x4096", "n": 2})"));
  EXPECT_EQ(picture.status, 422) << picture.body;
  EXPECT_EQ(wait_for_state(submit(kShort), "completed").at("state"), "completed");
  EXPECT_EQ(end(), 0);
}

// The memory of those who draw elsewhere is theirs to know.
TEST_F(ServeCommand, AJobThatDoesNotFitItsWorkerFails) {
  start({"--memory-limit", "60M", "--workers", "processes"});
  const std::string id = submit(R"({"prompt": "x", "size": "512x512", "num_frames": 33})");
  const json over = wait_for_state(id, "failed");
  ASSERT_EQ(over.at("state"), "failed") << over;
  EXPECT_EQ(over.at("error").at("code"), "memory");
  ASSERT_FALSE(over.at("error").at("hints").empty()) << over;
  EXPECT_TRUE(std::string(over.at("error").at("hints")[0]).starts_with("--")) << over;
  EXPECT_EQ(end(), 0);
}

// Rolling restarts share a store; another store would take the files of its jobs for orphans.
TEST_F(ServeCommand, AFolderBelongsToOneStore) {
  start();
  const std::string serve =
      "serve --model " + kPocket + " --threads 1 --listen 127.0.0.1:0 -o " + path("out");
  const Outcome other = run(serve + " --store " + path("other.sqlite"));
  EXPECT_EQ(other.code, 2) << other.err;
  EXPECT_NE(other.err.find("out/jobs.sqlite"), std::string::npos) << other.err;
  EXPECT_EQ(run(serve + " --store none").code, 2);
  const pid_t first = std::exchange(pid_, -1);
  start();  // the same store
  const pid_t second = std::exchange(pid_, first);
  EXPECT_EQ(end(), 0);
  EXPECT_EQ(run(serve + " --store none").code, 2);
  pid_ = second;
  EXPECT_EQ(end(SIGKILL), 128 + SIGKILL);
  start({"--store", path("other.sqlite")});  // nobody uses it any more
  EXPECT_EQ(end(), 0);
}

TEST_F(ServeCommand, AVideoSurvivesAKillUnderItsId) {
  start();
  const auto create = [&](const std::string& path, const std::string& body) {
    const RawClient::Answer answer = ask(post(path, body));
    EXPECT_EQ(answer.status, 200) << answer.body;
    return json::parse(answer.body);
  };
  const json video = create("/v1/videos", R"({"prompt": "a red ball", "seconds": "2", "seed": 7,
      "num_inference_steps": 60, "quality": "lossless"})");
  const std::string id = video.at("id");
  EXPECT_EQ(video.at("num_frames"), 33);
  EXPECT_EQ(video.at("quality"), "lossless");
  wait_for(id, [](const json& now) { return now.at("progress").at("step") > 0; });
  EXPECT_EQ(end(SIGKILL), 128 + SIGKILL);
  start();
  EXPECT_EQ(wait_for_state(id, "completed").at("state"), "completed");
  json after = json::parse(ask(get("/v1/videos/" + id)).body);
  EXPECT_EQ(after.at("progress"), 100);
  for (const char* same : {"id", "model", "created_at", "seconds", "size", "prompt", "quality"})
    EXPECT_EQ(after.at(same), video.at(same)) << same;
  EXPECT_EQ(ask(get("/v1/videos/" + id + "/content")).body.substr(4, 4), "ftyp");
  EXPECT_EQ(ask(get("/v1/videos/" + id + "/content?variant=thumbnail")).body.substr(1, 3), "PNG");

  // A remix with the same prompt has the same frames.
  const std::string remix =
      create("/v1/videos/" + id + "/remix", R"({"prompt": "a red ball"})").at("id");
  const auto hash = [](const json& job) { return job.at("outputs").at(0).at("framehash"); };
  EXPECT_EQ(hash(wait_for_state(remix, "completed")), hash(job(id)));
  // One that is deleted while it runs leaves nothing.
  const std::string deleted = create("/v1/videos", kLong).at("id");
  wait_for(deleted, [](const json& now) { return now.at("progress").at("step") > 0; });
  for (const std::string& each : {id, remix, deleted})
    EXPECT_EQ(ask("DELETE /v1/videos/" + each + " HTTP/1.1\r\nHost: localhost\r\n\r\n").status,
              200);
  const auto files_of_videos = [&] {
    return std::ranges::count_if(
        files(), [](const std::string& file) { return file.find("video_") != std::string::npos; });
  };
  for (int look = 0; look < 500 && files_of_videos() > 0; ++look) std::this_thread::sleep_for(20ms);
  EXPECT_EQ(files_of_videos(), 0);
  EXPECT_EQ(end(), 0);
}

TEST_F(ServeCommand, ADrainLetsTheRunningJobEndAndTheNextStartDrawsTheRest) {
  start({"--drain-seconds", "3600"});
  const std::string first = submit(kLong), second = submit(kShort);
  wait_for(first, [](const json& now) { return now.at("progress").at("step") > 0; });
  kill(pid_, SIGTERM);
  while (ask(get("/health/ready")).status != 503) std::this_thread::sleep_for(5ms);
  EXPECT_EQ(ask(get("/health/live")).status, 200);
  EXPECT_EQ(ask(post("/v1/jobs", kShort)).status, 503);
  EXPECT_EQ(job(first).at("state"), "running");
  EXPECT_EQ(job(second).at("state"), "queued");
  EXPECT_EQ(cancel(first).status, 200);  // its end is the server's
  EXPECT_EQ(end(0), 0) << log();
  start();
  EXPECT_EQ(job(first).at("state"), "cancelled");
  EXPECT_EQ(wait_for_state(second, "completed").at("state"), "completed");
  EXPECT_EQ(end(), 0);
}

TEST_F(ServeCommand, WhatTheSchemaRefusesIsNoJob) {
  start();
  for (const char* job :
       {R"({"prompt": 5})", R"({"prompt": true})", R"({"prompt": null})", R"({"prompt": ["x"]})",
        R"({"prompt": "x", "steps": null})", R"({"prompt": "x", "lora": 5})",
        R"({"prompt": "x", "image": null})", "{\"prompt\": \"gr\xfcn\"}"}) {
    const RawClient::Answer answer = ask(post("/v1/jobs", job));
    EXPECT_EQ(answer.status, 400) << job;
    EXPECT_EQ(json::parse(answer.body).at("error").at("code"), "invalid_request") << answer.body;
  }
  EXPECT_EQ(json::parse(ask(get("/v1/jobs")).body).at("data"), json::array());
  EXPECT_EQ(end(), 0);
}

// Its latents wait for a decoding that nobody asks for.
TEST_F(ServeCommand, AFailedJobLeavesNothing) {
  start();
  const std::string id = submit(R"({"prompt": "x", "num_frames": 33, "steps": 60})");
  wait_for(id, [](const json& now) { return now.at("progress").at("step") > 0; });
  test::fs::create_directory(path("out/" + id + ".mp4"));  // where the result is due
  const json over = wait_for_state(id, "failed");
  EXPECT_EQ(over.at("state"), "failed") << over;
  EXPECT_EQ(over.at("error").at("code"), "output") << over;
  EXPECT_EQ(end(), 0);
  EXPECT_EQ(files(),
            (std::vector<std::string>{"log", "out", kOwner, "out/" + id + ".mp4", kStore, kLock}));
}

TEST_F(ServeCommand, AJobThatADrainStopsGoesOnAtTheNextStart) {
  start({"--drain-seconds", "0"});
  const std::string id = submit(kLong);
  const int before = wait_for(id, [](const json& now) { return now.at("progress").at("step") > 2; })
                         .at("progress")
                         .at("step");
  EXPECT_EQ(end(), 0) << log();
  ASSERT_TRUE(exists(path("out/" + id + ".mp4.checkpoint.safetensors")));
  start();
  const json later = wait_for(id, [](const json& now) {
    return now.at("progress").at("step") > 0 && now.at("progress").at("stage") == "denoise";
  });
  EXPECT_EQ(later.at("attempt"), 2);
  EXPECT_GE(later.at("progress").at("step"), before);
  EXPECT_EQ(cancel(id).status, 200);
  wait_for_state(id, "cancelled");
  EXPECT_EQ(end(), 0);
  EXPECT_EQ(files(), (std::vector<std::string>{"log", "out", kOwner, kStore, kLock}));
}

// A server without a store forgets its jobs.
TEST_F(ServeCommand, WithoutAStoreNothingOutlivesTheServer) {
  start({"--store", "none", "--drain-seconds", "0"});
  submit(kLong);
  EXPECT_EQ(end(), 0) << log();
  EXPECT_FALSE(exists(path(kStore)));
  start();
  EXPECT_EQ(json::parse(ask(get("/v1/jobs")).body).at("data"), json::array());
  EXPECT_EQ(end(), 0);
}

TEST_F(ServeCommand, LimitsOfAJob) {
  start({"--max-steps", "9", "--max-frames", "9", "--max-pixels", "4096", "--max-prompt-bytes",
         "20B", "--max-job-cost", "2500", "--job-deadline", "0.5"});
  const std::map<std::string, std::string> bodies = {
      {R"({"prompt": "x", "size": "64x64", "num_frames": 1, "steps": 10})",
       "steps is 10, legal: 1 ... 9, which --max-steps"},
      {R"({"prompt": "x", "size": "64x64", "num_frames": 13, "steps": 1})",
       "num_frames is 13, legal: 1 ... 9, which --max-frames"},
      {R"({"prompt": "x", "size": "128x64", "num_frames": 1, "steps": 1})",
       "size is 128x64, legal: at most 4096 pixels"},
      {R"({"prompt": "a prompt of 21 bytes!"})", "prompt is 21 bytes, legal: at most 20 bytes"},
      {R"({"prompt": "x", "negative_prompt": "a prompt of 21 bytes!"})", "negative_prompt is 21"}};
  for (const auto& [body, message] : bodies) {
    const RawClient::Answer answer = ask(post("/v1/jobs", body));
    EXPECT_EQ(answer.status, 400) << body;
    EXPECT_NE(answer.body.find(message), std::string::npos) << answer.body;
  }
  const RawClient::Answer dear =
      ask(post("/v1/jobs", R"({"prompt": "x", "size": "64x64", "num_frames": 5, "steps": 9})"));
  EXPECT_EQ(dear.status, 422) << dear.body;
  const json error = json::parse(dear.body).at("error");
  EXPECT_EQ(error.at("code"), "does_not_fit");
  EXPECT_EQ(error.at("hints").size(), 3u) << error;
  std::string deep(1'000'000, '[');
  EXPECT_EQ(ask(post("/v1/jobs", "{\"prompt\": " + deep)).status, 400);
  std::string keys = "{\"prompt\": \"x\"";
  for (int i = 0; i < 10'000; ++i) keys += ", \"k" + std::to_string(i) + "\": 1";
  EXPECT_NE(ask(post("/v1/jobs", keys + "}")).body.find("keys in one JSON object"),
            std::string::npos);
  EXPECT_EQ(json::parse(ask(get("/v1/jobs")).body).at("data"), json::array());
  EXPECT_EQ(end(), 0);
}

TEST_F(ServeCommand, AJobMayNotRunForEver) {
  start({"--job-deadline", "0.5"});
  const RawClient::Answer answer =
      ask("POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nPrefer: "
          "wait=60\r\nContent-Length: " +
          std::to_string(kLong.size()) + "\r\n\r\n" + kLong);
  EXPECT_EQ(answer.status, 504) << answer.body;
  EXPECT_EQ(json::parse(answer.body).at("error").at("code"), "deadline_exceeded");
  EXPECT_TRUE(answer.has("x-should-retry: false")) << answer.header;
  EXPECT_EQ(wait_for_state(submit(kShort), "completed").at("state"), "completed");
  EXPECT_EQ(end(), 0);
}

TEST_F(ServeCommand, ReplicasShareTheModel) {
  start({"--dp", "2", "--max-queue", "2"});
  const json model = json::parse(ask(get("/v1/model")).body);
  EXPECT_EQ(model.at("replicas"), 2);
  EXPECT_EQ(model.at("ranks"), 1);
  const std::string first = submit(kLong), second = submit(kShort);
  const json over = wait_for_state(second, "completed");
  ASSERT_EQ(over.at("state"), "completed") << over;
  EXPECT_EQ(job(first).at("state"), "running");
  EXPECT_NE(job(first).at("replica"), over.at("replica"));
  EXPECT_EQ(cancel(first).status, 200);
  const Outcome same = run("generate -q --model " + kPocket +
                           " --threads 1 -p 'a red ball' --num-frames 5 --steps 2 --seed 7 --size "
                           "64x64 -o " +
                           path("same.mp4"));
  EXPECT_NE(same.out.find(over.at("outputs").at(0).at("framehash").get<std::string>()),
            std::string::npos);
  EXPECT_EQ(end(), 0);
}

TEST_F(ServeCommand, RefusesWhatCannotServe) {
  const std::string serve = "serve --model " + kPocket + " -o " + path("out") + " ";
  const Outcome others = run(serve + "--listen 0.0.0.0:0");
  EXPECT_EQ(others.code, 2);
  EXPECT_NE(others.err.find("without a key"), std::string::npos) << others.err;
  const Outcome none = run(serve + "--listen 127.0.0.1");
  EXPECT_EQ(none.code, 2);
  EXPECT_NE(none.err.find("legal: HOST:PORT"), std::string::npos) << none.err;
  const Outcome small = run(serve + "--listen 127.0.0.1:0 --memory-limit 1M");
  EXPECT_EQ(small.code, 4) << small.err;  // the warm-up does not fit
  std::ofstream(path("file")) << "no folder";
  EXPECT_EQ(run("serve --model " + kPocket + " --listen 127.0.0.1:0 -o " + path("file/x")).code, 7);
  const Outcome stream =
      run("serve --model models/pocket_avatar --listen 127.0.0.1:0 -o " + path("streams"));
  EXPECT_EQ(stream.code, 2);
  EXPECT_NE(stream.err.find("legal: weft stream --listen"), std::string::npos) << stream.err;
}

}  // namespace
}  // namespace weft
