// The gzip program unpacks compressed traces completely.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "io/trace_file.h"

namespace weft {
namespace {

TEST(Gzip, ComesBackWhole) {
  Recorder recorder(Recorder::Keep::kEvents);
  for (int i = 0; i < 2000; ++i) recorder.op({OpFamily::kCopy, 0, 1.0 * i, "copy"}, [] {});
  const std::string path = testing::TempDir() + "/trace.json.gz";
  write_trace(path, {{0, &recorder}}, {}, Overwrite::kReplace);
  const std::string plain = trace_json({{0, &recorder}});
  EXPECT_LT(std::filesystem::file_size(path), plain.size() / 4);
  std::string back;
  FILE* pipe = popen(("gzip -dc " + path).c_str(), "r");
  std::array<char, 4096> buffer;
  for (size_t n; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    back.append(buffer.data(), n);
  EXPECT_EQ(pclose(pipe), 0);
  EXPECT_EQ(back, plain);
  EXPECT_THROW(write_trace(path, {}, {}, Overwrite::kRefuse), Error);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace weft
