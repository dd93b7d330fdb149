#pragma once
// Shared by the media tests: a temporary folder, pictures, and faults of the file system.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "io/media/frame.h"
#include "kernels/check.h"
#include "tests/support/error_of.h"

namespace weft {

class TempFolder {
 public:
  TempFolder() : path_(testing::TempDir() + "weft_media_XXXXXX") {
    CHECK(mkdtemp(path_.data()) != nullptr, path_);
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  // Returns the sorted names in the folder, including hidden ones.
  std::vector<std::string> entries() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_))
      names.push_back(entry.path().filename().string());
    std::ranges::sort(names);
    return names;
  }

 private:
  std::string path_;
};

// Draws a smooth coloured picture with a moving square, which is a typical input for an encoder.
inline Frame test_picture(int width, int height, int t) {
  Frame frame(width, height);
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x) {
      uint8_t* p = frame.at(x, y);
      const bool inside =
          std::abs(x - (width / 8 + 2 * t) % (3 * width / 4) - width / 8) < width / 8 &&
          std::abs(y - height / 2) < height / 8;
      p[0] = static_cast<uint8_t>(inside ? 220 : 40 + 100 * x / width);
      p[1] = static_cast<uint8_t>(inside ? 60 : 60 + 80 * y / height);
      p[2] = static_cast<uint8_t>(inside ? 40 : 120);
    }
  return frame;
}

// Expects that `call` throws an Error of that kind whose text is one readable line.
template <class Call>
void expect_output_error(Call&& call, ErrorKind kind = ErrorKind::kOutput) {
  const std::string text = test::thrown_error(call, kind);
  EXPECT_FALSE(test::contains(text, "\n"));
  EXPECT_GT(text.size(), 20u) << text;
}

// While this object exists, writes beyond `bytes` in any file fail with EFBIG. It simulates a full
// disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

}  // namespace weft
