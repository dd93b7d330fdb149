// Workers of a server as processes: what they draw, and what happens when one dies.
#include <signal.h>

#include <condition_variable>
#include <deque>
#include <set>
#include <thread>

#include "apps/serve/server_text.h"
#include "apps/worker/messages.h"
#include "apps/worker/worker_host.h"
#include "apps/worker/worker_processes.h"
#include "parallel/transport/processes/ucx.h"
#include "tests/apps/cli_testing.h"
#include "tests/apps/serve_testing.h"

namespace weft {
namespace {

using nlohmann::json;
using test::Cli, test::kPocket, test::Outcome, test::run;

struct DrawnJob {
  std::string id, worker;                          // that drew it last
  int attempts = 0, progress = 0, first_step = 0;  // of the last attempt
  json result{}, error{};                          // null: none
};

// Jobs in memory, which wait, run and end as those of a Service.
class FakeService {
 public:
  void add(const std::string& id, const json& spec, const std::string& output) {
    const std::lock_guard lock(mutex_);
    waiting_.push_back({.id = id, .program = "", .resolved = spec.dump(), .output = output});
    jobs_[id].id = id;
    changed_.notify_all();
  }
  std::unique_ptr<HeldJob> take(const std::string& team, const std::string& program,
                                const std::function<bool()>& give_up) {
    std::unique_lock lock(mutex_);
    for (;;) {
      if (program_.empty()) program_ = program;
      if (is_draining_ || give_up()) return nullptr;
      if (program == program_ && !waiting_.empty()) break;
      changed_.wait_for(lock, 50ms);
    }
    auto held = std::make_unique<Held>(*this, waiting_.front());
    waiting_.pop_front();
    DrawnJob& job = jobs_[held->stored_.job.id];
    job = {.id = job.id, .worker = team, .attempts = job.attempts + 1};
    held_.insert(held.get());
    changed_.notify_all();
    return held;
  }
  void set_program(const std::string& program) { program_ = program; }
  void drain() {
    const std::lock_guard lock(mutex_);
    is_draining_ = true;
    changed_.notify_all();
  }
  void stop_running() {
    const std::lock_guard lock(mutex_);
    for (Held* held : held_) held->stop_ = true;
  }
  // The job, once `enough` says that it is what the test waits for. A minute is a failure.
  DrawnJob wait_for(const std::string& id, const std::function<bool(const DrawnJob&)>& enough) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, 60s, [&] { return enough(jobs_[id]); })) << id;
    return jobs_[id];
  }
  DrawnJob wait_for_end(const std::string& id) {
    return wait_for(
        id, [](const DrawnJob& job) { return !job.result.is_null() || !job.error.is_null(); });
  }

 private:
  struct Held final : HeldJob, ProgressListener {
    Held(FakeService& service, const NewJob& job) : service_(service) { stored_.job = job; }
    ~Held() override {
      if (!ended_) fail({ErrorKind::kComm, "dropped"});
    }
    const StoredJob& job() const override { return stored_; }
    const std::atomic<bool>& stop() const override { return stop_; }
    ProgressListener& listener() override { return *this; }
    void progress(const Progress& heard) override {
      if (heard.stage != "denoise") return;
      change([&](DrawnJob& job) {
        if (job.progress++ == 0) job.first_step = heard.step;
      });
    }
    void complete(const std::string& result) override {
      end([&](DrawnJob& job) { job.result = json::parse(result); });
    }
    void fail(const Error& error) override {
      end([&](DrawnJob& job) {
        if (error.kind() == ErrorKind::kComm)
          service_.waiting_.push_back(stored_.job);
        else
          job.error = json(to_json(error));
      });
    }
    void change(const std::function<void(DrawnJob&)>& how) {
      const std::lock_guard lock(service_.mutex_);
      how(service_.jobs_[stored_.job.id]);
      service_.changed_.notify_all();
    }
    void end(const std::function<void(DrawnJob&)>& how) {
      ended_ = true;
      change([&](DrawnJob& job) {
        how(job);
        service_.held_.erase(this);
      });
    }
    FakeService& service_;
    StoredJob stored_{};
    std::atomic<bool> stop_{false};
    bool ended_ = false;
  };

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<NewJob> waiting_;
  std::map<std::string, DrawnJob> jobs_;
  std::set<Held*> held_;
  std::string program_;  // of the jobs; that of the first worker
  bool is_draining_ = false;
};

const json kTiny = {{"prompt", "a red ball"},
                    {"num_frames", 5},
                    {"steps", 2},
                    {"seed", 7},
                    {"width", 64},
                    {"height", 64}};
// Some seconds of work.
json long_job(int steps = 200) {
  json job = kTiny;
  job["steps"] = steps;
  return job;
}

class Workers : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    test::fs::create_directory(path("out"));
    host_ = std::make_unique<WorkerHost>(WorkerHost::Settings{
        .folder = path("out/"),
        .key = kKey,
        .take = [this](const auto& team, const auto& program,
                       const auto& give_up) { return service_.take(team, program, give_up); },
        .heard =
            [this](const std::string& name, WorkerEvent event) {
              const std::lock_guard lock(mutex_);
              ++events_[{name, event}];
              if (processes_) processes_->heard(name, event);
            }});
    ServerSettings settings;
    settings.websockets = {host_->route()};
    server_ = std::make_unique<HttpServer>(settings);
    server_->start();
  }
  void TearDown() override {
    service_.drain();
    service_.stop_running();
    end_processes();
    server_->stop();
    host_.reset();
    Cli::TearDown();
  }

  std::vector<std::string> arguments() const {
    return {"--model=" + kPocket, "--threads=1", "--quiet", "--checkpoint-every=0"};
  }
  void start(int teams, int processes = 1, std::vector<std::string> more = {}) {
    WorkerProcesses::Settings settings{
        .program = WEFT_BINARY,
        .arguments = arguments(),
        .join = "127.0.0.1:" + std::to_string(server_->port()),
        .key = kKey,
        .teams = teams,
        .processes = processes,
        .first_pause_s = 0.05,
        .told = [this](const std::string& worker, const std::string& line) {
          const std::lock_guard lock(lines_mutex_);
          lines_ += worker + ": " + line + "\n";
        }};
    for (std::string& word : more) settings.arguments.push_back(std::move(word));
    auto started = std::make_unique<WorkerProcesses>(std::move(settings));
    const std::lock_guard lock(mutex_);
    processes_ = std::move(started);
  }
  void end_processes() {
    std::unique_ptr<WorkerProcesses> ending;
    {
      const std::lock_guard lock(mutex_);
      ending = std::move(processes_);
    }
  }
  std::string lines() const {
    const std::lock_guard lock(lines_mutex_);
    return lines_;
  }
  std::string output(const std::string& id) const { return path("out/" + id + ".mp4"); }
  void add(const std::string& id, const json& spec) { service_.add(id, spec, output(id)); }
  // The framehash of a job that nothing disturbs.
  std::string undisturbed(const json& spec, const std::string& more = "") {
    std::string fields = " " + more;
    for (const auto& [name, value] : spec.items())
      fields +=
          " --" + name + " '" + (value.is_string() ? value.get<std::string>() : value.dump()) + "'";
    const std::string file = path("undisturbed.mp4");
    const auto lines = test::json_lines_of("generate -q --json --overwrite --model " + kPocket +
                                           " --threads 1" + fields + " -o " + file);
    return lines.empty() ? "" : lines.back().at("framehash").get<std::string>();
  }
  // The processes of weft that this one started.
  static std::vector<pid_t> workers() {
    const Outcome found = run(std::to_string(getpid()) + " -a", "pgrep -P");
    std::vector<pid_t> pids;
    std::istringstream lines(found.out);
    for (std::string line; std::getline(lines, line);)
      if (line.find(" worker --join") != std::string::npos) pids.push_back(std::stoi(line));
    return pids;
  }
  static pid_t process_of(const std::string& worker, const std::string& rank = "") {
    for (const pid_t pid : workers()) {
      const auto has = [&](const std::string& file, const std::string& text) {
        std::ifstream stream("/proc/" + std::to_string(pid) + "/" + file);
        const std::string all(std::istreambuf_iterator<char>(stream), {});
        return ("\0" + all).find(text) != std::string::npos;
      };
      if (has("cmdline", "--worker-name=" + worker) &&
          (rank.empty() || has("environ", std::string("\0RANK=", 6) + rank)))
        return pid;
    }
    ADD_FAILURE() << "no process of " << worker;
    return 0;
  }

  FakeService service_;
  std::unique_ptr<WorkerHost> host_;
  std::unique_ptr<HttpServer> server_;
  std::mutex mutex_;
  std::map<std::pair<std::string, WorkerEvent>, int> events_;
  std::unique_ptr<WorkerProcesses> processes_;
  mutable std::mutex lines_mutex_;
  std::string lines_;
};

TEST_F(Workers, AKilledWorkerCostsItsJobAnAttemptAndNoOther) {
  start(2);
  add("a", long_job());
  add("b", long_job());
  const auto drawn = [](const DrawnJob& job) { return job.progress > 3; };
  const DrawnJob a = service_.wait_for("a", drawn), b = service_.wait_for("b", drawn);
  ASSERT_NE(a.worker, b.worker);
  kill(process_of(a.worker), SIGKILL);
  const DrawnJob retried = service_.wait_for_end("a"), other = service_.wait_for_end("b");
  EXPECT_EQ(retried.attempts, 2) << lines();
  EXPECT_GT(retried.first_step, 1) << "it began anew";
  EXPECT_EQ(other.attempts, 1);
  const std::string hash = undisturbed(long_job());
  EXPECT_EQ(retried.result.value("framehash", ""), hash) << retried.error << lines();
  EXPECT_EQ(other.result.value("framehash", ""), hash) << other.error << lines();
  EXPECT_NE(lines().find("ended by signal 9"), std::string::npos) << lines();
  // The worker was started again, and takes jobs.
  for (int i = 0; i < 600 && processes_->ready() < 2; ++i) std::this_thread::sleep_for(100ms);
  EXPECT_EQ(processes_->ready(), 2) << lines();
}

TEST_F(Workers, AStopEndsTheJobAndTheWorkerGoesOn) {
  start(1);
  add("a", long_job(1000));
  service_.wait_for("a", [](const DrawnJob& job) { return job.progress > 2; });
  service_.stop_running();
  const DrawnJob stopped = service_.wait_for_end("a");
  EXPECT_EQ(stopped.error.value("kind", 0), static_cast<int>(ErrorKind::kStopped));
  EXPECT_TRUE(test::fs::exists(output("a") + ".checkpoint.safetensors"));
  add("b", kTiny);
  EXPECT_EQ(service_.wait_for_end("b").result.value("framehash", ""), undisturbed(kTiny));
  EXPECT_EQ(lines(), "");
}

TEST_F(Workers, AJobThatFailsCostsNothingElse) {
  start(1);
  json bad = kTiny;
  bad["num_frames"] = 6;  // legal: 4n+1
  add("a", bad);
  add("b", kTiny);
  const DrawnJob failed = service_.wait_for_end("a");
  EXPECT_EQ(failed.error.value("kind", 0), static_cast<int>(ErrorKind::kUsage));
  EXPECT_FALSE(service_.wait_for_end("b").result.is_null());
  EXPECT_EQ(lines(), "");
}

TEST_F(Workers, ADrainEndsThem) {
  start(2);
  add("a", kTiny);
  service_.wait_for_end("a");
  processes_->drain();
  service_.drain();
  for (int i = 0; i < 600 && !workers().empty(); ++i) std::this_thread::sleep_for(50ms);
  EXPECT_TRUE(workers().empty());
  for (int i = 0; i < 200 && test::lines(lines()) < 2; ++i) std::this_thread::sleep_for(50ms);
  for (const char* line :
       {"worker-0: ended with exit code 0\n", "worker-1: ended with exit code 0\n"})
    EXPECT_NE(lines().find(line), std::string::npos) << lines();
}

TEST_F(Workers, ASignalLetsAWorkerLeaveACheckpoint) {
  start(1);
  add("a", long_job(1000));
  const auto drawn = [](const DrawnJob& job) { return job.progress > 2; };
  service_.wait_for("a", drawn);
  end_processes();
  EXPECT_EQ(service_.wait_for_end("a").error.value("kind", 0),
            static_cast<int>(ErrorKind::kStopped));
  EXPECT_TRUE(test::fs::exists(output("a") + ".checkpoint.safetensors"));
}

TEST_F(Workers, AWorkerThatLosesItsServerLeavesACheckpoint) {
  start(1);
  add("a", long_job(1000));
  service_.wait_for("a", [](const DrawnJob& job) { return job.progress > 2; });
  processes_->drain();
  server_->stop();
  for (int i = 0; i < 600 && lines().empty(); ++i) std::this_thread::sleep_for(50ms);
  EXPECT_NE(lines().find("the connection to the server has ended"), std::string::npos) << lines();
  for (int i = 0; i < 600 && !workers().empty(); ++i) std::this_thread::sleep_for(50ms);
  EXPECT_TRUE(workers().empty());
  EXPECT_TRUE(test::fs::exists(output("a") + ".checkpoint.safetensors"));
}

TEST_F(Workers, RefusesAWorker) {
  const std::string join = "worker --model " + kPocket +
                           " --threads 1 --join 127.0.0.1:" + std::to_string(server_->port());
  std::ofstream(path("key")) << "fedcba9876543210";
  const Outcome wrong = run(join + " --api-key-file " + path("key"));
  EXPECT_EQ(wrong.code, 2);
  EXPECT_NE(wrong.err.find("refuses the key"), std::string::npos) << wrong.err;
  const Outcome none = run(join);
  EXPECT_EQ(none.code, 2);
  EXPECT_NE(none.err.find("refuses the key"), std::string::npos) << none.err;
  for (const char* address : {"127.0.0.1", "127.0.0.1:0", "127.0.0.1:99999", ":80"}) {
    const Outcome outcome = run(std::string("worker --model ") + kPocket + " --join " + address);
    EXPECT_EQ(outcome.code, 2) << address;
    EXPECT_NE(outcome.err.find("legal: HOST:PORT"), std::string::npos) << outcome.err;
  }
  const Outcome nobody = run("worker --model " + kPocket + " --threads 1 --join 127.0.0.1:1");
  EXPECT_EQ(nobody.code, 6);
  EXPECT_NE(nobody.err.find("cannot be reached"), std::string::npos) << nobody.err;
}

TEST_F(Workers, AWorkerOfAnotherProgramGetsNoJob) {
  service_.set_program("another");
  start(1);
  add("a", kTiny);
  for (int i = 0; i < 600 && processes_->ready() == 0; ++i) std::this_thread::sleep_for(50ms);
  ASSERT_EQ(processes_->ready(), 1) << lines();
  std::this_thread::sleep_for(500ms);
  EXPECT_EQ(service_.wait_for("a", [](const DrawnJob&) { return true; }).attempts, 0);
}

// A worker whose hello is made up.
std::string answer_to(uint16_t port, const std::function<json(const json& welcome)>& hello) {
  RawClient client(port);
  client.send(get(kWorkerPath,
                  "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                  "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nAuthorization: Bearer " +
                      kKey + "\r\n"));
  client.read_until("\r\n\r\n");
  const json welcome = json::parse(read_frame(client).payload);
  client.send(text_frame(hello(welcome).dump()));
  return read_frame(client).payload;
}

TEST_F(Workers, AHelloMustShowTheFolderAndTheProtocol) {
  std::string file;
  const auto hello = [&](const json& welcome) {
    file = welcome.at("file");
    EXPECT_TRUE(file.starts_with(path("out/"))) << file;
    return json{
        {"type", "hello"}, {"protocol", 1}, {"program", "x"}, {"name", "far away"}, {"seen", ""}};
  };
  const std::string unseen = answer_to(server_->port(), hello);
  EXPECT_NE(unseen.find("does not see the folder"), std::string::npos) << unseen;
  EXPECT_FALSE(test::fs::exists(file));
  const std::string older = answer_to(server_->port(), [&](const json& welcome) {
    json old = hello(welcome);
    old["protocol"] = 99;
    return old;
  });
  EXPECT_NE(older.find("its protocol is 99, legal: 1"), std::string::npos) << older;
  const std::string wrong = answer_to(server_->port(), [](const json&) { return json("hello"); });
  EXPECT_NE(wrong.find("refused"), std::string::npos) << wrong;
}

TEST_F(Workers, TeamsThatNeverBecomeReadyAreHopeless) {
  start(1, 1, {"--memory-limit=1M"});
  for (int i = 0; i < 600 && !processes_->hopeless(); ++i) std::this_thread::sleep_for(100ms);
  EXPECT_TRUE(processes_->hopeless());
  EXPECT_NE(lines().find("ended with exit code 4"), std::string::npos) << lines();
}

TEST_F(Workers, ProcessesOfATeamDrawTogetherAndAreStartedAnewTogether) {
  if (!ucx_built()) GTEST_SKIP() << "this build has no UCX";
  const std::string kLayout = "--layout=ulysses=2";
  start(1, 2, {kLayout});
  add("a", kTiny);
  add("b", long_job(120));
  EXPECT_EQ(service_.wait_for_end("a").result.value("framehash", ""), undisturbed(kTiny, kLayout))
      << lines();
  service_.wait_for("b", [](const DrawnJob& job) { return job.progress > 3; });
  kill(process_of("worker-0", "1"), SIGKILL);
  const DrawnJob retried = service_.wait_for_end("b");
  EXPECT_EQ(retried.attempts, 2) << lines();
  EXPECT_GT(retried.first_step, 1) << "it began anew";
  EXPECT_EQ(retried.result.value("framehash", ""), undisturbed(long_job(120), kLayout))
      << retried.error << lines();
  // A stop costs no process.
  const std::vector<pid_t> before = workers();
  add("c", long_job(1000));
  service_.wait_for("c", [](const DrawnJob& job) { return job.progress > 2; });
  service_.stop_running();
  EXPECT_EQ(service_.wait_for_end("c").error.value("kind", 0),
            static_cast<int>(ErrorKind::kStopped));
  add("d", kTiny);
  EXPECT_EQ(service_.wait_for_end("d").result.value("framehash", ""), undisturbed(kTiny, kLayout));
  EXPECT_EQ(workers(), before);
}

// CPU seconds that processes have taken.
double cpu_seconds(const std::vector<pid_t>& pids) {
  double ticks = 0;
  for (const pid_t pid : pids) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    std::string text(std::istreambuf_iterator<char>(file), {});
    std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 2)));
    std::string word;
    for (int i = 3; i <= 15 && fields >> word; ++i)  // the first is field 3 of proc(5)
      if (i >= 14) ticks += std::stod(word);
  }
  return ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

TEST_F(Workers, SleepWhileNobodySendsJobs) {
  constexpr double kSeconds = 5, kMost = 1;  // one that spins takes kSeconds
  for (const int processes : {1, 2}) {
    if (processes > 1 && !ucx_built()) continue;
    start(1, processes, {"--layout=" + std::string(processes > 1 ? "ulysses=2" : "auto")});
    const std::string id = "first_" + std::to_string(processes);
    add(id, kTiny);
    service_.wait_for_end(id);
    const std::vector<pid_t> pids = workers();
    ASSERT_EQ(std::ssize(pids), processes);
    std::this_thread::sleep_for(1s);  // threads of OpenMP spin for a moment
    const double before = cpu_seconds(pids);
    std::this_thread::sleep_for(std::chrono::duration<double>(kSeconds));
    const double taken = cpu_seconds(pids) - before;
    std::printf("%d idle processes: %.2f s of CPU in %g s\n", processes, taken, kSeconds);
    EXPECT_LT(taken, kMost);
    end_processes();
  }
}

TEST(WorkerMessages, ProgressAndPreviewsComeBackAsTheyWere) {
  const Progress progress{.stage = "denoise",
                          .step = 3,
                          .total = 9,
                          .sigma = 0.5,
                          .seconds_per_step = 1.25,
                          .elapsed_seconds = 4,
                          .eta_seconds = 7.5,
                          .memory_bytes = 1ull << 40,
                          .kept = 2,
                          .pictures = 5,
                          .turn = 6,
                          .finished_segments = 1,
                          .segments = 8,
                          .first_frame_seconds = 3,
                          .chunk = 1,
                          .chunks = 2};
  const Progress back = read_progress(json(to_json(progress)));
  EXPECT_EQ(to_json(back).dump(), to_json(progress).dump());
  EXPECT_EQ(back.memory_bytes, progress.memory_bytes);
  Preview preview{.step = 1, .total = 4, .fps = 16, .frames = {Frame(2, 1), Frame(3, 2)}};
  preview.frames[1].rgb[4] = '\n';
  const Preview seen = read_preview_message(preview_message(preview));
  ASSERT_EQ(seen.frames.size(), 1u);
  EXPECT_EQ(seen.frames[0].width, 3);
  EXPECT_EQ(seen.frames[0].rgb, preview.frames[1].rgb);
  EXPECT_EQ(seen.step, 1);
  const std::string whole = preview_message(preview);
  for (const std::string& bytes :
       {whole.substr(0, whole.size() - 1), whole + "x", std::string("{}\n"), std::string(),
        std::string("{\"width\": 100000, \"height\": 100000}\n")})
    EXPECT_THROW(read_preview_message(bytes), Error) << bytes;
  const Error error = read_error(json(to_json(Error(ErrorKind::kMemory, "full"))));
  EXPECT_EQ(error.kind(), ErrorKind::kMemory);
  EXPECT_STREQ(error.what(), "full");
  EXPECT_EQ(read_error({{"kind", 4711}, {"message", ""}}).kind(), ErrorKind::kInternal);
  for (const char* text : {"", "[]", "{}", "{\"type\": 3}", "x"})
    EXPECT_THROW(read_worker_message(text), Error) << text;
}

}  // namespace
}  // namespace weft
