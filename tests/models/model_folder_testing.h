#pragma once
// A copy of a golden case's model directory, which a test may change.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "io/json.h"
#include "models/registry.h"
#include "tests/support/error_of.h"

namespace weft {

class ModelFolder : public testing::Test {
 protected:
  void copy(const std::string& name) {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    path_ = testing::TempDir() + "weft_" + test->test_suite_name() + "_" + test->name();
    std::filesystem::remove_all(path_);
    std::filesystem::copy("tests/golden/" + name + "/model", path_,
                          std::filesystem::copy_options::recursive);
  }
  void TearDown() override { std::filesystem::remove_all(path_); }
  void edit(const std::string& file, const std::function<void(nlohmann::json&)>& change) {
    nlohmann::json json = read_json_file(path_ + "/" + file);
    change(json);
    std::ofstream(path_ + "/" + file) << json.dump();
  }
  // Returns the error of opening the folder, or "".
  std::string fault() {
    return test::error_of([&] { open_model_directory(path_); }, ErrorKind::kModel);
  }
  std::string path_;
};

}  // namespace weft
