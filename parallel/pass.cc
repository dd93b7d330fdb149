#include "parallel/pass.h"

namespace weft {

// "step 12 prompt 0 model 1 branch 0 segment 0 micro 0", without the fields that are 0 but the
// step.
std::string to_string(const Pass& pass) {
  std::string text = "step " + std::to_string(pass.step);
  const auto field = [&](const char* name, int value) {
    if (value != 0) text += std::string(" ") + name + " " + std::to_string(value);
  };
  field("prompt", pass.prompt);
  field("model", pass.model);
  field("branch", pass.branch);
  field("segment", pass.segment);
  field("micro", pass.micro);
  return text;
}

Pass in_tag(Pass pass) {
  constexpr int kCount = 1 << 16;
  pass.segment %= kCount;
  pass.step %= kCount;
  return pass;
}

}  // namespace weft
