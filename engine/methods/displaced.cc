#include "engine/methods/displaced.h"

#include <algorithm>

namespace weft {

std::vector<MethodNumber> Distrifusion::numbers() {
  return {{"patches", "1 ... 4096", &patches},
          {"warmup", "0 ... 1000", &warmup},
          {"split", "rows|frames", &split},
          {"code", "none|fp8|residual-fp8", &code},
          {"resync", "1 ... 1000", &resync}};
}

std::string Distrifusion::resolve(const MethodFacts& facts) {
  warmup = warmup.value_or(4);
  code = code.value_or(WireCode::kNone);
  return Patched::resolve(facts);
}

MethodLimit Distrifusion::limit(const TokenGrid& grid, bool joint) const {
  return {joint ? SplitRule::kPatchEach : SplitRule::kPatches, *patches};
}

StalePatches Distrifusion::stale_patches(const TokenGrid& grid, int steps) const {
  return {.displaced = Displaced{.patches = tokens_of_patches(grid),
                                 .warmup = static_cast<int>(*warmup),
                                 .resync = static_cast<int>(resync.value_or(0)),
                                 .steps = steps,
                                 .code = *code}};
}

std::vector<MethodNumber> Pcpp::numbers() {
  std::vector<MethodNumber> all = Distrifusion::numbers();
  all.insert(all.begin() + 1,
             {{"window", "0 ... 1", &near}, {"last_window", "0 ... 1", &last_near}});
  return all;
}

std::string Pcpp::resolve(const MethodFacts& facts) {
  near = near.value_or(0.3);
  last_near = last_near.value_or(*near);
  const std::string fault = Distrifusion::resolve(facts);
  if (!fault.empty() || *last_near <= *near) return fault;
  return " has a window that grows; legal: last_window=0 ... " + shortest(*near);
}

StalePatches Pcpp::stale_patches(const TokenGrid& grid, int steps) const {
  StalePatches out = Distrifusion::stale_patches(grid, steps);
  const int first = out.displaced->warmup, last = std::max(steps - 1, first);
  for (int step = 0; step < steps; ++step) {
    const double share =
        last == first ? 0 : std::clamp(1.0 * (step - first) / (last - first), 0.0, 1.0);
    out.displaced->windows.push_back(*near + share * (*last_near - *near));
  }
  return out;
}

}  // namespace weft
