#include "apps/generate/quality.h"

#include <algorithm>

namespace weft {
namespace {

constexpr Quality exact(const char* name) { return {name, "full", "none"}; }
constexpr Quality server(const char* name) { return {name, nullptr, nullptr}; }
// The threshold 0.04 skips hardly a step, 0.08 a third of them and 0.12 a half.
constexpr Quality high(const char* name) { return {name, "auto", "first-block:0.04", 60.8, 0}; }
constexpr Quality medium(const char* name) { return {name, "auto", "first-block:0.08", 30.5, 2}; }
constexpr Quality low(const char* name) { return {name, "auto", "first-block:0.12", 27.7, 5}; }

constexpr Quality kQualities[] = {exact("lossless"), exact("max"),      exact("xhigh"),
                                  exact("hd"),       high("high"),      medium("balanced"),
                                  medium("medium"),  low("fast"),       low("low"),
                                  server("auto"),    server("standard")};

}  // namespace

std::span<const Quality> qualities() { return kQualities; }

const Quality* find_quality(std::string_view name) {
  const auto found = std::ranges::find(kQualities, name, &Quality::name);
  return found == std::end(kQualities) ? nullptr : found;
}

}  // namespace weft
