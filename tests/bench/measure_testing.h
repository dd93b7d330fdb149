#pragma once
// Runs weft_measure as a developer does, and draws what it prints.
#include "tests/apps/cli_testing.h"

namespace weft::test {

inline Outcome measured(const std::string& arguments) { return run(arguments, WEFT_MEASURE); }
inline std::vector<nlohmann::json> measured_lines(const std::string& arguments) {
  return json_lines_of(arguments, WEFT_MEASURE);
}

// The picture that plot.py draws of these lines.
inline std::string plotted(const std::vector<nlohmann::json>& lines, const std::string& folder) {
  const std::string path = folder + "/lines.jsonl";
  std::ofstream file(path);
  for (const nlohmann::json& line : lines) file << line.dump() << "\n";
  file.close();
  const Outcome outcome = run("tests/bench/plot.py " + path, "python3");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return outcome.out;
}

}  // namespace weft::test
