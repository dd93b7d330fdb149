#include "parallel/pass.h"

namespace weft {

// "request 0 model 1 branch 0 clip 0 step 12 micro 0", without the fields that are 0 but the step.
std::string to_string(const Pass& pass) {
  std::string text = "step " + std::to_string(pass.step);
  const auto field = [&](const char* name, int value) {
    if (value != 0) text += std::string(" ") + name + " " + std::to_string(value);
  };
  field("request", pass.request);
  field("model", pass.model);
  field("branch", pass.branch);
  field("clip", pass.clip);
  field("micro", pass.micro);
  return text;
}

Pass in_tag(Pass pass) {
  constexpr int kCount = 1 << 16;
  pass.clip %= kCount;
  pass.step %= kCount;
  return pass;
}

}  // namespace weft
