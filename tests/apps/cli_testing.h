#pragma once
// Runs the binary as a user does, and collects its output and the files that it leaves.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

namespace weft::test {

namespace fs = std::filesystem;

inline const std::string kModel = "tests/golden/pipeline_t2v/model";
inline const std::string kJob =
    " --size 32x16 --num-frames 9 --steps 2 --seed 5 --threads 1 --progress none ";

struct Outcome {
  int code = -1;
  std::string out, err;
};

// The shell reads `arguments`.
inline Outcome run(const std::string& arguments) {
  const std::string err_path = testing::TempDir() + "/weft_stderr_" + std::to_string(getpid());
  const std::string command = std::string(WEFT_BINARY) + " " + arguments + " 2>" + err_path;
  FILE* pipe = popen(command.c_str(), "r");
  Outcome outcome;
  std::array<char, 4096> buffer;
  for (size_t n; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    outcome.out.append(buffer.data(), n);
  const int status = pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  std::ifstream err(err_path);
  outcome.err.assign(std::istreambuf_iterator<char>(err), {});
  return outcome;
}

// Gives each test a fresh folder, which is removed at its end.
class Cli : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/weft_cli_" + std::to_string(getpid());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(folder_))
      names.push_back(fs::relative(entry.path(), folder_).string());
    std::sort(names.begin(), names.end());
    return names;
  }
  std::string folder_;
};

// The objects of JSON lines.
inline std::vector<nlohmann::json> json_lines(const std::string& text) {
  std::vector<nlohmann::json> objects;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) objects.push_back(nlohmann::json::parse(line));
  return objects;
}

// The JSON lines that a command prints which must succeed.
inline std::vector<nlohmann::json> json_lines_of(const std::string& command) {
  const Outcome outcome = run(command);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return json_lines(outcome.code == 0 ? outcome.out : "");
}

inline size_t lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

}  // namespace weft::test
