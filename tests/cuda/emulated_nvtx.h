#pragma once
// Returns what a profiler would have seen of the calling thread's ranges.
#include <map>
#include <string>
#include <vector>

namespace weft::test {

struct Ranges {
  std::vector<std::string> open;
  std::map<std::string, int> pushed;
};
Ranges& ranges();

}  // namespace weft::test
