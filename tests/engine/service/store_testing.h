#pragma once
// Stores with clocks that a test sets, and short names for what they are given.
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "engine/service/job_store.h"

namespace weft::test {

struct SetClocks {
  int64_t unix_ms = 1'800'000'000'000, boot_ms = 1'000'000;
  std::string boot_id = "first";

  void pass(double seconds) {
    unix_ms += static_cast<int64_t>(seconds * 1000);
    boot_ms += static_cast<int64_t>(seconds * 1000);
  }
  StoreHost host() const {
    return {.unix_ms = [this] { return unix_ms; },
            .boot_ms = [this] { return boot_ms; },
            .boot_id = boot_id,
            .network_file_system = {}};
  }
};

inline NewJob job_named(const std::string& id) {
  return {.id = id,
          .program = "model",
          .request = R"({"prompt":"a star"})",
          .resolved = R"({"prompt":"a star","seed":1})",
          .output = "/results/" + id + ".mp4"};
}

// A path in the test's folder at which no file lies.
inline std::string new_file(const std::string& name) {
  const std::string path = testing::TempDir() + name;
  for (const char* end : {"", "-wal", "-shm", ".v1.bak"}) std::filesystem::remove(path + end);
  return path;
}

}  // namespace weft::test
