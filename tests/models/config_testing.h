#pragma once
// Configuration files that tests change.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "io/json.h"

namespace weft::test {

// A config.json in a folder of its own. Weights beside it would give some configurations sizes.
class ConfigFile {
 public:
  explicit ConfigFile(const nlohmann::json& config) {
    std::filesystem::create_directories(folder_);
    std::ofstream(path()) << config.dump();
  }
  ConfigFile(const ConfigFile&) = delete;
  ConfigFile& operator=(const ConfigFile&) = delete;
  ~ConfigFile() { std::filesystem::remove_all(folder_); }
  std::string path() const { return folder_ + "/config.json"; }

 private:
  const std::string folder_ = testing::TempDir() + "weft_config_" + std::to_string(getpid());
};

// Reads a file of which some fields are changed, and those that are null are removed.
template <class Config>
Config config_with(const std::string& origin, const nlohmann::json& fields) {
  nlohmann::json config = read_json_file(origin);
  config.merge_patch(fields);
  return Config::from_json_file(ConfigFile(config).path());
}

}  // namespace weft::test
