#pragma once
// A folder that stands for / in tests of what is read from /proc and /sys.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace weft::test {

class FakeRoot {
 public:
  explicit FakeRoot(const std::string& name)
      : path_(testing::TempDir() + "/weft_root_" + name + "_" + std::to_string(getpid())) {
    std::filesystem::remove_all(path_);
  }
  ~FakeRoot() { std::filesystem::remove_all(path_); }
  FakeRoot(const FakeRoot&) = delete;
  FakeRoot& operator=(const FakeRoot&) = delete;

  const std::string& path() const { return path_; }
  void write(const std::string& file, const std::string& text) {
    const std::filesystem::path path = path_ + "/" + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }

 private:
  const std::string path_;
};

}  // namespace weft::test
