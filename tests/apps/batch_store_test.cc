// Batches of one store: batches and a server draw each other's jobs, each once, and a batch that is
// killed or stopped leaves its jobs to the others.
#include <fcntl.h>

#include <csignal>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "engine/service/job_store.h"
#include "tests/apps/cli_testing.h"
#include "tests/apps/serve_testing.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Cli, test::kModel, test::Outcome, test::run;

class BatchStore : public Cli {
 protected:
  void TearDown() override {
    while (!running_.empty()) end(running_.begin()->first, SIGKILL);
    Cli::TearDown();
  }

  // Writes the jobs of NAME.jsonl, whose results come to the folder NAME.
  void jobs(const std::string& name, const std::vector<json>& lines) {
    std::ofstream file(path(name + ".jsonl"));
    for (const json& line : lines) file << line.dump() << "\n";
  }
  std::vector<std::string> batch(const std::string& name, std::vector<std::string> more = {}) {
    std::vector<std::string> words{"batch", path(name + ".jsonl"), "-o", path(name) + "/"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  // Starts the program with the test's model and store; what it prints comes to `out`.
  pid_t start(std::vector<std::string> words, int out = -1) {
    words.insert(words.begin(), WEFT_BINARY);
    for (const char* word : {"--model", kModel.c_str(), "--threads", "1", "--size", "32x16",
                             "--num-frames", "1", "--steps", "1", "--checkpoint-every", "0"})
      words.emplace_back(word);
    words.push_back("--store=" + path("jobs.sqlite"));
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const std::string log = path("log" + std::to_string(running_.size()));
    const pid_t pid = fork();
    if (pid == 0) {
      const int err = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      dup2(err, STDERR_FILENO);
      dup2(out >= 0 ? out : err, STDOUT_FILENO);
      execv(WEFT_BINARY, arguments.data());
      _exit(127);
    }
    running_[pid] = log;
    return pid;
  }
  // The exit code, after a signal if one is given, and what was told.
  Outcome end(pid_t pid, int signal = 0) {
    if (signal) kill(pid, signal);
    int status = 0;
    waitpid(pid, &status, 0);
    Outcome outcome;
    outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    std::ifstream file(running_.at(pid));
    outcome.err.assign(std::istreambuf_iterator<char>(file), {});
    running_.erase(pid);
    return outcome;
  }
  Outcome draw(const std::string& name, std::vector<std::string> more = {}) {
    return end(start(batch(name, std::move(more))));
  }

  template <class Enough>
  void wait_for(Enough enough) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    while (!enough()) {
      ASSERT_LT(std::chrono::steady_clock::now(), limit);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  // The jobs of the store by the names that their resolved requests have, and so the files.
  std::map<std::string, StoredJob> stored() {
    std::map<std::string, StoredJob> all;
    if (!fs::exists(path("jobs.sqlite"))) return all;
    const auto page = JobStore(path("jobs.sqlite")).list(1000, "");
    for (const StoredJob& job : page.value().jobs)
      EXPECT_TRUE(all.emplace(json::parse(job.job.resolved).at("id"), job).second);
    return all;
  }
  // Waits until the job "long" of the batch runs and all of its jobs are in the store. What reads
  // the store while it is made may see less.
  void wait_for_long(const std::string& name, size_t jobs) {
    wait_for([&] {
      return fs::exists(path(name + "/long.png.checkpoint.old.safetensors")) &&
             stored().size() >= jobs;
    });
  }
  // The lines of a file of the results' folder, by job. Each job has one at most.
  std::map<std::string, json> log(const std::string& name) {
    std::map<std::string, json> all;
    std::ifstream file(path(name));
    for (std::string line; std::getline(file, line);)
      EXPECT_TRUE(all.emplace(json::parse(line).at("custom_id"), json::parse(line)).second) << line;
    return all;
  }
  static std::string framehash(const json& line) {
    return line.at("response").at("body").at("framehash");
  }

  std::map<pid_t, std::string> running_;
};

json quick_line(const std::string& id) { return {{"id", id}, {"prompt", "ball " + id}}; }
json slow_line(const std::string& id) {
  json job = quick_line(id);
  job["steps"] = 1000;
  job["size"] = "64x64";
  return job;
}
std::vector<json> quick_lines(const std::string& prefix, int count) {
  std::vector<json> jobs;
  for (int i = 0; i < count; ++i) jobs.push_back(quick_line(prefix + std::to_string(i)));
  return jobs;
}

TEST_F(BatchStore, ShardsThatRunTogetherDrawEveryLineOnce) {
  constexpr size_t kJobs = 150;  // more than may wait at a time
  jobs("a", quick_lines("a", kJobs));
  const pid_t first = start(batch("a", {"--shard", "0/2"}));
  const pid_t second = start(batch("a", {"--shard", "1/2"}));
  for (const pid_t pid : {first, second}) {
    const Outcome outcome = end(pid);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
  }
  EXPECT_EQ(log("a/results-0-of-2.jsonl").size(), kJobs / 2);
  EXPECT_EQ(log("a/results-1-of-2.jsonl").size(), kJobs / 2);
  const auto all = stored();
  EXPECT_EQ(all.size(), kJobs);
  for (const auto& [id, job] : all) {
    EXPECT_EQ(job.state, JobState::kCompleted) << id;
    EXPECT_EQ(job.attempt, 1) << id;
  }
  const json manifest = json::parse(std::ifstream(path("a/manifest.json")));
  EXPECT_EQ(manifest.at("state"), "completed");
  EXPECT_EQ(manifest.at("request_counts"),
            (json{{"total", kJobs}, {"completed", kJobs}, {"failed", 0}}));
  const json body = log("a/results-0-of-2.jsonl").at("a2").at("response").at("body");
  const Outcome same =
      run("generate -q --model " + kModel +
          " --threads 1 --size 32x16 --num-frames 1 --steps 1 -p 'ball a2' --seed " +
          body.at("seed").dump() + " -o " + path("same.png"));
  EXPECT_NE(same.out.find(body.at("framehash").get<std::string>()), std::string::npos);
  // A verified result is not drawn again.
  const Outcome again = draw("a");
  EXPECT_EQ(again.code, 0) << again.err;
  for (const auto& [id, job] : stored()) EXPECT_EQ(job.attempt, 1) << id;
}

// The first batch stands still while it draws. Another one draws all but that job, and the first
// one finds the results.
TEST_F(BatchStore, ABatchDrawsTheJobsOfAnother) {
  std::vector<json> lines = quick_lines("a", 8);
  lines.insert(lines.begin(), slow_line("long"));
  jobs("a", lines);
  jobs("b", {quick_line("b")});
  const pid_t first = start(batch("a"));
  wait_for_long("a", 9);
  kill(first, SIGSTOP);
  const Outcome other = draw("b");
  EXPECT_EQ(other.code, 0) << other.err;
  const std::string helper = stored().at("b").worker;
  for (int i = 0; i < 8; ++i) EXPECT_EQ(stored().at("a" + std::to_string(i)).worker, helper);
  kill(first, SIGCONT);
  const Outcome outcome = end(first);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(log("a/results.jsonl").size(), 9u);
  EXPECT_EQ(log("b/results.jsonl").size(), 1u);
  for (const auto& [id, job] : stored()) EXPECT_EQ(job.attempt, 1) << id;
  EXPECT_NE(stored().at("long").worker, helper);
}

TEST_F(BatchStore, AKilledBatchGoesOnAndDrawsNothingTwice) {
  jobs("a", {quick_line("a"), slow_line("long"), quick_line("c")});
  const pid_t first = start(batch("a"));
  wait_for([&] {
    return fs::exists(path("a/long.png.checkpoint.old.safetensors")) &&
           log("a/results.jsonl").size() == 1;
  });
  EXPECT_EQ(end(first, SIGKILL).code, 128 + SIGKILL);
  const auto written = fs::last_write_time(path("a/a.png"));
  const Outcome outcome = draw("a");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(log("a/results.jsonl").size(), 3u);
  EXPECT_EQ(fs::last_write_time(path("a/a.png")), written);
  EXPECT_EQ(stored().at("a").attempt, 1);
  EXPECT_EQ(stored().at("long").attempt, 2);
  EXPECT_EQ(stored().at("c").attempt, 1);
  EXPECT_GT(json::parse(std::ifstream(path("a/long.png.json"))).at("resumed_after_step"), 0);
}

TEST_F(BatchStore, AStoppedBatchLeavesItsJobsInTheStore) {
  jobs("a", {quick_line("a"), slow_line("long"), quick_line("c")});
  const pid_t first = start(batch("a"));
  wait_for_long("a", 3);
  const Outcome stopped = end(first, SIGUSR1);
  EXPECT_EQ(stopped.code, 75) << stopped.err;
  EXPECT_NE(stopped.err.find("stopped: 2 of 3 jobs are not drawn"), std::string::npos)
      << stopped.err;
  EXPECT_EQ(json::parse(std::ifstream(path("a/manifest.json"))).at("state"), "in_progress");
  for (const char* id : {"long", "c"}) EXPECT_EQ(stored().at(id).state, JobState::kQueued);

  // Another batch draws them meanwhile, but for a line that is another one by then.
  jobs("b", {quick_line("b")});
  EXPECT_EQ(draw("b").code, 0);
  for (const char* id : {"long", "c"}) EXPECT_EQ(stored().at(id).state, JobState::kCompleted);
  EXPECT_GT(json::parse(std::ifstream(path("a/long.png.json"))).at("resumed_after_step"), 0);
  const Outcome outcome = draw("a");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(log("a/results.jsonl").size(), 3u);
  EXPECT_TRUE(log("a/errors.jsonl").empty());
  EXPECT_EQ(stored().at("c").attempt, 1);
}

TEST_F(BatchStore, ALineThatChangedReplacesItsJobInTheStore) {
  jobs("a", {slow_line("long"), quick_line("c")});
  const pid_t first = start(batch("a"));
  wait_for_long("a", 2);
  EXPECT_EQ(end(first, SIGINT).code, 130);
  json other = quick_line("c");
  other["prompt"] = "another";
  jobs("a", {slow_line("long"), other});
  const Outcome outcome = draw("a");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(log("a/results.jsonl").at("c").at("response").at("body").at("prompt"), "another");
  EXPECT_EQ(stored().size(), 2u);
}

TEST_F(BatchStore, AJobThatFailsIsALineAndIsDrawnAgain) {
  json large = quick_line("large"), taken = quick_line("taken");
  large["size"] = "512x512";
  taken["output"] = "taken/{id}.png";
  jobs("a", {large, taken, quick_line("c")});
  fs::create_directories(path("a"));
  std::ofstream(path("a/taken")) << "no folder";
  const Outcome outcome = draw("a", {"--memory-limit", "12M"});
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  EXPECT_TRUE(log("a/results.jsonl").contains("c"));
  const auto errors = log("a/errors.jsonl");
  ASSERT_EQ(errors.size(), 2u) << outcome.err;
  EXPECT_EQ(errors.at("large").at("error").at("code"), "memory");
  EXPECT_EQ(errors.at("large").at("error").at("exit_code"), 4);
  EXPECT_EQ(errors.at("taken").at("error").at("code"), "output");
  const json manifest = json::parse(std::ifstream(path("a/manifest.json")));
  EXPECT_EQ(manifest.at("request_counts"), (json{{"total", 3}, {"completed", 1}, {"failed", 2}}));

  fs::remove(path("a/taken"));
  const Outcome mended = draw("a");
  EXPECT_EQ(mended.code, 0) << mended.err;
  EXPECT_EQ(log("a/results.jsonl").size(), 3u);
  EXPECT_TRUE(log("a/errors.jsonl").empty());
  // A file that is damaged, or that is to be replaced, is drawn again.
  const std::string before = framehash(log("a/results.jsonl").at("c"));
  std::ofstream(path("a/c.png"), std::ios::app) << "damage";
  EXPECT_EQ(draw("a").code, 0);
  EXPECT_EQ(framehash(log("a/results.jsonl").at("c")), before);
  const int64_t finished = stored().at("c").finished_ms;
  const Outcome replaced = draw("a", {"--overwrite"});
  EXPECT_EQ(replaced.code, 0) << replaced.err;
  EXPECT_GT(stored().at("c").finished_ms, finished);
  EXPECT_EQ(log("a/results.jsonl").size(), 3u);
}

// The first process takes the jobs, and both draw them; a line that fails ends neither.
TEST_F(BatchStore, ProcessesDrawTheJobsTogether) {
  if (std::system("mpirun --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "no mpirun";
  json large = quick_line("large");
  large["size"] = "512x512";
  jobs("a", {quick_line("a"), large, quick_line("c")});
  const std::string command =
      "mpirun --allow-run-as-root --oversubscribe -n 2 " + std::string(WEFT_BINARY) + " batch " +
      path("a.jsonl") + " -q --model " + kModel +
      " --threads 1 --size 32x16 --num-frames 1 --steps 1 --layout ring=2 --memory-limit 12M "
      "--store " +
      path("jobs.sqlite") + " -o " + path("a/") + " >/dev/null 2>&1";
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 1);
  EXPECT_EQ(log("a/results.jsonl").size(), 2u);
  EXPECT_EQ(log("a/errors.jsonl").at("large").at("error").at("code"), "memory");
  for (const auto& [id, job] : stored()) EXPECT_EQ(job.attempt, 1) << id;
  const json manifest = json::parse(std::ifstream(path("a/manifest.json")));
  EXPECT_EQ(manifest.at("state"), "completed");
}

TEST_F(BatchStore, RefusesWhatCannotShareAStore) {
  jobs("a", {quick_line("a")});
  const Outcome replicas = draw("a", {"--layout", "data=2"});
  EXPECT_EQ(replicas.code, 2);
  EXPECT_NE(replicas.err.find("legal: a layout without data"), std::string::npos) << replicas.err;
  const Outcome none =
      run("batch " + path("a.jsonl") + " --model " + kModel + " --store none -o " + path("a/"));
  EXPECT_EQ(none.code, 2);
  EXPECT_NE(none.err.find("--store is 'none', legal: a file"), std::string::npos) << none.err;
  std::ofstream(path("jobs.sqlite")) << "no database, but a text that is long enough to be read";
  EXPECT_EQ(draw("a").code, 2);
}

// The server's ranks and those of the batch draw each other's jobs.
TEST_F(BatchStore, AServerAndABatchShareTheirWork) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const pid_t server = start(
      {"serve", "--listen", "127.0.0.1:0", "--json", "--max-steps", "1000", "-o", path("served")},
      ends[1]);
  close(ends[1]);
  std::string line;
  for (char c; read(ends[0], &c, 1) == 1 && c != '\n';) line += c;
  close(ends[0]);
  ASSERT_TRUE(line.starts_with('{')) << end(server, SIGKILL).err;
  const uint16_t port = json::parse(line).at("port");
  const auto ask = [&](const std::string& bytes) {
    const RawClient::Answer answer = RawClient(port).ask(bytes);
    EXPECT_LT(answer.status, 300) << answer.body;
    return json::parse(answer.body);
  };
  const std::string busy =
      ask(post("/v1/jobs", R"({"prompt": "x", "steps": 1000, "num_frames": 65, "size": "64x64"})"))
          .at("id");
  wait_for([&] { return ask(get("/v1/jobs/" + busy)).at("progress").at("step") > 0; });
  const std::string waits = ask(post("/v1/jobs", R"({"prompt": "y", "seed": 3})")).at("id");

  // The server is busy: the batch draws what waits there, and its own line after it.
  jobs("a", {quick_line("a")});
  const Outcome helped = draw("a");
  EXPECT_EQ(helped.code, 0) << helped.err;
  const json drawn = ask(get("/v1/jobs/" + waits));
  ASSERT_EQ(drawn.at("state"), "completed") << drawn;
  EXPECT_TRUE(std::string(drawn.at("replica")).starts_with("batch-")) << drawn;
  EXPECT_EQ(RawClient(port).ask(get(drawn.at("outputs").at(0).at("url"))).status, 200);
  const Outcome same = run("generate -q --model " + kModel +
                           " --threads 1 --size 32x16 --num-frames 1 --steps 1 -p y --seed 3 -o " +
                           path("same.png"));
  EXPECT_NE(same.out.find(drawn.at("outputs").at(0).at("framehash").get<std::string>()),
            std::string::npos);

  // A batch that stands still finds what the server has drawn for it.
  std::vector<json> lines = quick_lines("b", 8);
  lines.insert(lines.begin(), slow_line("long"));
  jobs("b", lines);
  const pid_t second = start(batch("b"));
  wait_for_long("b", 12);  // three were there
  kill(second, SIGSTOP);
  ask(post("/v1/jobs/" + busy + "/cancel", ""));
  wait_for([&] { return fs::exists(path("b/b7.png.json")); });
  kill(second, SIGCONT);
  const Outcome outcome = end(second);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(log("b/results.jsonl").size(), 9u);
  for (const auto& [id, job] : stored()) {
    EXPECT_EQ(job.attempt, 1) << id;
    const bool by_batch = job.worker.starts_with("batch-");
    EXPECT_EQ(by_batch, id == "a" || id == "long" || id == waits) << id << " " << job.worker;
  }
  // Its files are the batch's, whatever a client of the server does with the job.
  ask("DELETE /v1/jobs/" + stored().at("b0").job.id + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_TRUE(fs::exists(path("b/b0.png")));
  EXPECT_EQ(end(server, SIGTERM).code, 0);
}

}  // namespace
}  // namespace weft
