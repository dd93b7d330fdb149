#include "engine/request.h"

#include <algorithm>
#include <cmath>

#include "engine/sampler.h"

namespace weft {
namespace {

[[noreturn]] void refuse(const std::string& field, const std::string& value,
                         const std::string& legal) {
  throw Error(ErrorKind::kUsage, field + " is " + value + ", legal: " + legal);
}

std::string shown(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

void check_number(const std::string& field, double value, double low, double high) {
  if (value >= low && value <= high) return;  // false for NaN
  refuse(field, shown(value), shown(low) + " to " + shown(high));
}

// Refuses a value that is not multiple * k + offset for some integer k, or not within [low, high].
void check_grid(const std::string& field, int64_t value, int64_t multiple, int64_t offset,
                int64_t low, int64_t high, const std::string& rule) {
  if (value >= low && value <= high && (value - offset) % multiple == 0) return;
  const int64_t top = (high - offset) / multiple * multiple + offset;
  const int64_t below = (std::clamp(value, low, top) - offset) / multiple * multiple + offset;
  const int64_t above = std::min(below + multiple, top);
  std::string nearest = "nearest " + std::to_string(below);
  if (value > below && above != below) nearest += " and " + std::to_string(above);
  if (value < low) nearest += " and " + std::to_string(low + multiple);
  refuse(field, std::to_string(value), rule + ", " + nearest);
}

}  // namespace

Request resolve(const Request& request, const DefaultSettings& defaults) {
  Request out = request;
  if (!out.negative_prompt) out.negative_prompt = defaults.negative_prompt;
  if (out.width == 0) out.width = defaults.width;
  if (out.height == 0) out.height = defaults.height;
  if (out.frames == 0) out.frames = defaults.frames;
  if (out.fps == 0) out.fps = defaults.fps;
  if (!out.sigmas.empty()) out.steps = static_cast<int>(out.sigmas.size());
  if (out.steps == 0) out.steps = defaults.steps;
  // A guidance scale that is given only for the high-noise expert is used for both.
  if (!out.guidance_scale_2) {
    out.guidance_scale_2 = out.guidance_scale ? out.guidance_scale : defaults.guidance_scale_2;
  }
  if (!out.guidance_scale) out.guidance_scale = defaults.guidance_scale;
  if (!out.guidance_scale_2) out.guidance_scale_2 = out.guidance_scale;
  // The published shift belongs to the grid of the original solver, so scheduler_config.json takes
  // precedence; a shift in weft.json is used.
  const bool own = defaults.origin == "weft.json";
  if (own && !out.flow_shift && out.sigmas.empty()) out.flow_shift = defaults.flow_shift;
  return out;
}

void validate(const Request& request, const ModelLimits& limits) {
  const std::string multiple = "multiples of " + std::to_string(limits.size_multiple);
  check_grid("width", request.width, limits.size_multiple, 0, limits.size_multiple, kMaxSide,
             multiple);
  check_grid("height", request.height, limits.size_multiple, 0, limits.size_multiple, kMaxSide,
             multiple);
  check_grid("frames", request.frames, limits.frame_multiple, 1, 1, kMaxFrames,
             std::to_string(limits.frame_multiple) + "n+1");
  check_number("fps", request.fps, 0.1, 1000);
  check_number("guidance scale", *request.guidance_scale, 0, 1000);
  check_number("guidance scale 2", *request.guidance_scale_2, 0, 1000);
  if (limits.experts < 2 && *request.guidance_scale_2 != *request.guidance_scale) {
    refuse("guidance scale 2", shown(*request.guidance_scale_2),
           "absent, as this model has one expert");
  }
  if (request.flow_shift) check_number("flow shift", *request.flow_shift, 1e-3, 1e3);
  if (!request.sigmas.empty() && request.flow_shift) {
    refuse("flow shift", shown(*request.flow_shift),
           "absent where sigmas are given, as they are used as they stand");
  }
  if (!request.solver.empty()) solver_from_name(request.solver);
}

}  // namespace weft
