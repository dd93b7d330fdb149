#pragma once
// Shared by the tests of jobs that are killed or stopped: a process to kill, and a folder of clips.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "tests/apps/cli_testing.h"

namespace weft {

namespace fs = std::filesystem;

inline std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Runs the binary as a process of its own, with its output in files of `folder`.
class Child {
 public:
  Child(const std::string& folder, const std::string& arguments)
      : out_(folder + "/stdout"), err_(folder + "/stderr") {
    const std::string command =
        "exec " + std::string(WEFT_BINARY) + " " + arguments + " >" + out_ + " 2>" + err_;
    fs::remove(err_);  // of an earlier one
    pid_ = fork();
    if (pid_ != 0) return;
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  ~Child() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    wait();
  }
  void signal(int number) const { kill(pid_, number); }
  // Waits for `word` on standard error; false where the process ends before.
  bool says(const std::string& word) {
    while (err().find(word) == std::string::npos) {
      int status = 0;
      if (waitpid(pid_, &status, WNOHANG) == pid_) {
        end(status);
        return err().find(word) != std::string::npos;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }
  int wait() {
    if (pid_ > 0) {
      int status = 0;
      waitpid(pid_, &status, 0);
      end(status);
    }
    return code_;
  }
  std::string out() const { return text_of(out_); }
  std::string err() const { return text_of(err_); }

 private:
  void end(int status) {
    code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    pid_ = -1;
  }
  std::string out_, err_;
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
  Child start(const std::string& arguments) const { return Child(folder_, arguments); }
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
        std::this_thread::sleep_for(
            std::chrono::microseconds(random() % static_cast<int64_t>(takes.count())));
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
        EXPECT_EQ(nlohmann::json::parse(child.out()).at("framehash"), whole);
        break;
      }
      if (code == 7) {  // killed behind the end of the job: all is there
        EXPECT_EQ(nlohmann::json::parse(text_of(path(name + ".json"))).at("framehash"), whole)
            << err;
        break;
      }
      ASSERT_EQ(code, 128 + SIGKILL) << err;
      ++kills;
    }
  }
  for (const std::string& name : files())
    EXPECT_TRUE(!name.starts_with('.') && !name.ends_with(".safetensors")) << name;
}

}  // namespace weft
