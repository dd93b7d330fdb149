// The codes of errors are a promise to programs: each is spelt as the guide spells it.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>

namespace weft {
namespace {

namespace fs = std::filesystem;

std::string text_of_source(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// "404 not_found" for every row of the guide's table.
std::set<std::string> codes_of_guide() {
  const std::string guide = text_of_source("apps/guide/serve.md");
  std::set<std::string> codes;
  const std::regex row("\\| ([0-9, ]+) \\| ([^|]+) \\|"), word("`([a-z_]+)`"), number("[0-9]+");
  for (std::sregex_iterator at(guide.begin(), guide.end(), row), end; at != end; ++at) {
    const std::string statuses = (*at)[1], names = (*at)[2];
    for (std::sregex_iterator status(statuses.begin(), statuses.end(), number); status != end;
         ++status)
      for (std::sregex_iterator name(names.begin(), names.end(), word); name != end; ++name)
        codes.insert(status->str() + " " + (*name)[1].str());
  }
  return codes;
}

TEST(ErrorCodes, TheGuideHasThoseThatClientsKnow) {
  const std::set<std::string> codes = codes_of_guide();
  for (const char* code :
       {"400 invalid_request", "400 unsupported_parameter", "401 invalid_api_key", "404 not_found",
        "404 video_not_ready", "405 method_not_allowed", "409 already_finished",
        "409 idempotency_conflict", "413 payload_too_large", "415 unsupported_media",
        "422 does_not_fit", "429 queue_full", "429 rate_limited", "503 not_ready", "503 draining",
        "504 deadline_exceeded"})
    EXPECT_TRUE(codes.contains(code)) << code;
}

TEST(ErrorCodes, EveryAnswerOfTheServerStandsInTheGuide) {
  const std::set<std::string> codes = codes_of_guide();
  const std::regex answer(
      "(?:error_response|retry_response|FormRefused)\\(\\s*([0-9]{3}),\\s*\"([a-z_]+)\"");
  int found = 0;
  for (const auto& entry : fs::recursive_directory_iterator("apps")) {
    if (entry.path().extension() != ".cc" && entry.path().extension() != ".h") continue;
    const std::string source = text_of_source(entry.path());
    for (std::sregex_iterator at(source.begin(), source.end(), answer), end; at != end; ++at) {
      EXPECT_TRUE(codes.contains((*at)[1].str() + " " + (*at)[2].str()))
          << (*at)[1] << " " << (*at)[2] << " of " << entry.path();
      ++found;
    }
  }
  EXPECT_GE(found, 20);
}

}  // namespace
}  // namespace weft
