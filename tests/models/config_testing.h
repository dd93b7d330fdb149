#pragma once
// ConfigFile: a config.json that a test changes and reads.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "io/json.h"
#include "kernels/check.h"

namespace weft::test {

template <class Config>
class ConfigFile : public testing::Test {
 protected:
  explicit ConfigFile(const std::string& origin) : json_(read_json_file(origin)) {}
  ~ConfigFile() override { std::remove(path_.c_str()); }

  Config read() {
    std::ofstream(path_) << json_.dump();
    return Config::from_json_file(path_);
  }
  // The message with which the file is refused, or "".
  std::string fault() {
    try {
      read();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kModel);
      return error.what();
    }
    return "";
  }
  // The same with another value of one field.
  std::string fault(const char* field, const nlohmann::json& value) {
    const nlohmann::json before = json_;
    json_[field] = value;
    const std::string text = fault();
    json_ = before;
    return text;
  }

  nlohmann::json json_;
  std::string path_ = testing::TempDir() + "weft_config_" +
                      testing::UnitTest::GetInstance()->current_test_info()->test_suite_name() +
                      testing::UnitTest::GetInstance()->current_test_info()->name() + ".json";
};

}  // namespace weft::test
