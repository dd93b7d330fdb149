#pragma once
// The model of jobs in tests that need a whole one: text to video, a few thousand weights.
#include <string>

namespace weft::test {

inline const std::string kModel = "tests/golden/pipeline_t2v/model";

}  // namespace weft::test
