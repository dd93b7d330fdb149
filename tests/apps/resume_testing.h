#pragma once
// Shared by the tests of jobs that are killed or stopped: a process to kill, and a folder of clips.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <utility>

#include "tests/apps/cli_testing.h"

namespace weft::test {

namespace fs = std::filesystem;

inline std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Runs the binary as a process of its own, with its output in a file of `folder`. Its standard
// error is a socket of the smallest buffer, which holds a few lines: a process that reports its
// progress cannot run ahead of says(), however late that is.
class Child {
 public:
  using Clock = std::chrono::steady_clock;

  Child(const std::string& folder, const std::string& arguments) : out_(folder + "/stdout") {
    const std::string command = "exec " + std::string(WEFT_BINARY) + " " + arguments + " >" + out_;
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) abort();
    const int smallest = 1;  // the system raises it to its least
    setsockopt(ends[1], SOL_SOCKET, SO_SNDBUF, &smallest, sizeof smallest);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ends[1], STDERR_FILENO);
      execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      _exit(127);
    }
    close(ends[1]);
    socket_ = ends[0];
  }
  ~Child() {
    if (pid_ > 0) kill(pid_, SIGKILL);
    wait();
    if (socket_ >= 0) close(socket_);
  }
  Child(Child&& other) noexcept
      : out_(other.out_),
        err_(std::move(other.err_)),
        socket_(std::exchange(other.socket_, -1)),
        pid_(std::exchange(other.pid_, -1)),
        code_(other.code_) {}

  void signal(int number) const { kill(pid_, number); }
  // Waits for `word` on standard error; false where the process ends before.
  bool says(const std::string& word) {
    while (err_.find(word) == std::string::npos)
      if (!read_until(Clock::time_point::max())) {
        wait();
        return false;
      }
    return true;
  }
  // Lets it run for so long.
  void run_for(Clock::duration time) {
    const Clock::time_point end = Clock::now() + time;
    while (read_until(end) && Clock::now() < end) {
    }
  }
  int wait() {
    if (pid_ <= 0) return code_;
    while (read_until(Clock::time_point::max())) {
    }
    int status = 0;
    waitpid(pid_, &status, 0);
    code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    pid_ = -1;
    return code_;
  }
  std::string out() const { return text_of(out_); }
  const std::string& err() const { return err_; }  // all that was read

 private:
  // Reads what standard error has, or waits for some until then; false at its end.
  bool read_until(Clock::time_point end) {
    int wait_ms = -1;
    if (end != Clock::time_point::max())
      wait_ms = std::max<int>(
          0, std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count());
    pollfd input{.fd = socket_, .events = POLLIN, .revents = 0};
    if (poll(&input, 1, wait_ms) <= 0) return true;
    char text[4096];
    const ssize_t count = recv(socket_, text, sizeof text, 0);
    if (count > 0) err_.append(text, count);
    return count > 0;
  }
  const std::string out_;
  std::string err_;
  int socket_ = -1;
  pid_t pid_ = -1;
  int code_ = -1;
};

// The highest step that the events of --progress json report; a turn of the queue.
inline int steps_told(const std::string& err) {
  int step = 0;
  std::istringstream lines(err);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with('{') || !line.ends_with('}')) continue;
    const auto event = nlohmann::json::parse(line);
    if (event["stage"] == "denoise")
      step = std::max(step, event.value("turn", event["step"].get<int>()));
  }
  return step;
}

class Resume : public testing::Test {
 protected:
  void SetUp() override {
    // /dev/shm is preferred, because writing a checkpoint waits for the disk.
    const std::string root = fs::is_directory("/dev/shm") ? "/dev/shm" : testing::TempDir();
    folder_ = root + "/weft_resume_" + std::to_string(getpid());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    fs::create_directories(folder_ + "/clips");
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/clips/" + name; }
  std::string job(int steps, const std::string& more) const {
    return "generate --model tests/golden/pipeline_t2v/model --width 32 --height 16 --num-frames 9 "
           "--seed 5 --threads 1 --progress json -p x --steps " +
           std::to_string(steps) + " " + more;
  }
  Child start(const std::string& arguments) const { return {folder_, arguments}; }
  std::string hash_of(int steps) const {
    Child child = start(job(steps, "--json -o " + folder_ + "/whole.mp4 --overwrite"));
    EXPECT_EQ(child.wait(), 0) << child.err();
    return nlohmann::json::parse(child.out()).at("framehash");
  }
  // Everything in the folder, hidden files too.
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_ + "/clips"))
      names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }
  static std::string printed_command(const std::string& err) {
    const size_t at = err.find("Resume: ");
    if (at == std::string::npos) return "";
    const std::string line = err.substr(at + 8, err.find('\n', at) - at - 8);
    return line.substr(line.find(" generate") + 1);
  }
  // Kills the jobs that `arguments` makes of names at twenty random moments or more, until some
  // have fallen between two steps. All that end make the frames of `whole`, and no file is left
  // over. Checkpoints are kept `apart` steps from each other, so that fewer are lost.
  void kill_twenty(const std::function<std::string(const std::string& name)>& arguments,
                   const std::string& whole, int apart = 1);

  std::string folder_;
};

inline void Resume::kill_twenty(
    const std::function<std::string(const std::string& name)>& arguments, const std::string& whole,
    int apart) {
  const std::string more_flags = " --checkpoint-every 0 --json";
  const auto begun = std::chrono::steady_clock::now();
  ASSERT_EQ(start(arguments("timed") + more_flags).wait(), 0);
  const std::chrono::duration<double, std::micro> takes = std::chrono::steady_clock::now() - begun;
  constexpr int kKills = 20;
  std::mt19937 random(20);
  int kills = 0, resumed = 0;
  const auto more = [&] { return kills < kKills || resumed <= 3; };
  for (int clip = 0; more(); ++clip) {
    ASSERT_LT(clip, 200);
    const std::string name = std::to_string(clip);
    int before = 0;  // steps that are not to be lost
    for (int code = -1; code != 0;) {
      Child child = start(arguments(name) + more_flags);
      if (more()) {
        child.run_for(std::chrono::microseconds(random() % static_cast<int64_t>(takes.count())));
        child.signal(SIGKILL);
      }
      code = child.wait();
      const std::string err = child.err();
      const size_t at = err.find("resuming after step ");
      const int from = at == std::string::npos ? 0 : std::stoi(err.substr(at + 20));
      resumed += from > 0;
      const int told = steps_told(err);
      if (told > 0) {  // else it may have died before it looked
        EXPECT_GE(from, before - apart);
        before = told;
      }
      if (code == 0) {
        ASSERT_TRUE(nlohmann::json::accept(child.out())) << name << ": " << err;
        EXPECT_EQ(nlohmann::json::parse(child.out()).at("framehash"), whole);
        break;
      }
      if (code == 7) {  // killed after the end of the job: all is there
        const bool folder = fs::exists(path(name + ".json"));
        const std::string sidecar = text_of(path(name + (folder ? ".json" : ".mp4.json")));
        ASSERT_TRUE(nlohmann::json::accept(sidecar)) << name << ": " << err;
        EXPECT_EQ(nlohmann::json::parse(sidecar).at("framehash"), whole) << err;
        break;
      }
      ASSERT_EQ(code, 128 + SIGKILL) << err;
      ++kills;
    }
  }
  for (const std::string& name : files())
    EXPECT_TRUE(!name.starts_with('.') && !name.ends_with(".safetensors")) << name;
}

}  // namespace weft::test
