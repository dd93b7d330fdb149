#include "engine/job/request.h"

#include <algorithm>
#include <cmath>

#include "engine/parts/open_model.h"
#include "engine/sampling/sampler.h"

namespace weft {
namespace {

[[noreturn]] void refuse(const std::string& field, const std::string& value,
                         const std::string& legal) {
  throw Error(ErrorKind::kUsage, field + " is " + value + ", legal: " + legal);
}

void check_number(const std::string& field, double value, double low, double high) {
  if (value >= low && value <= high) return;  // false for NaN
  refuse(field, shown(value), shown(low) + " to " + shown(high));
}

}  // namespace

std::string shown(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

std::string Grid::rule() const {
  if (multiple == 1) return "whole numbers";
  return offset == 0 ? "multiples of " + std::to_string(multiple)
                     : std::to_string(multiple) + "n+" + std::to_string(offset);
}

std::vector<int64_t> Grid::nearest(int64_t value) const {
  const int64_t top = (high - offset) / multiple * multiple + offset;
  const int64_t below = (std::clamp(value, low, top) - offset) / multiple * multiple + offset;
  const int64_t above = std::min(below + multiple, top);
  std::vector<int64_t> values{below};
  if (value > below && above != below) values.push_back(above);
  if (value < low) values.push_back(low + multiple);
  return values;
}

void check_on_grid(const std::string& where, int64_t value, const Grid& grid) {
  if (grid.holds(value)) return;
  std::string nearest;
  for (const int64_t near : grid.nearest(value))
    nearest += (nearest.empty() ? "" : " and ") + std::to_string(near);
  throw Error(ErrorKind::kUsage, where + ", legal: " + grid.rule() + ", " +
                                     std::to_string(grid.low) + " ... " +
                                     std::to_string(grid.high) + "; nearest: " + nearest);
}

Grid side_grid(const ModelLimits& limits) {
  return {limits.size_multiple, 0, limits.size_multiple, kMaxSide};
}

Grid frame_grid(const ModelLimits& limits) {
  return {limits.frame_multiple, 1, 1, limits.max_frames};
}

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

Request take_opened(const OpenModel& model, Request request) {
  if (request.files.any() && request.files != model.files)
    throw Error(ErrorKind::kUsage, to_string(request.files) + ", but the model was opened with " +
                                       to_string(model.files) +
                                       "; legal: the same for all jobs of a run");
  request.files = model.files;
  if (!request.loras) request.loras = model.loras;
  return request;
}

void validate(const Request& request, const ModelLimits& limits) {
  check_on_grid("width is " + std::to_string(request.width), request.width, side_grid(limits));
  check_on_grid("height is " + std::to_string(request.height), request.height, side_grid(limits));
  check_on_grid("frames is " + std::to_string(request.frames), request.frames, frame_grid(limits));
  check_number("fps", request.fps, 0.1, 1000);
  check_number("guidance scale", *request.guidance_scale, 0, 1000);
  check_number("guidance scale 2", *request.guidance_scale_2, 0, 1000);
  if (!limits.guided && *request.guidance_scale > 1)
    refuse("guidance scale", shown(*request.guidance_scale),
           "0 to 1, as this model was distilled to need no guidance and would ignore it");
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

void validate_cache(const Request& request, const DefaultSettings& defaults) {
  const StepCache& cache = request.cache;
  const auto refuse = [&](const std::string& why, const std::string& legal) {
    throw Error(ErrorKind::kUsage,
                "--cache is '" + to_string(cache) + "', but " + why + "; legal: " + legal);
  };
  const bool any = cache.skipped && !cache.skipped->empty();
  if (cache.kind == StepCacheKind::kNone) {
    if (any) refuse("skipped_steps lists steps", "a cache that skips them");
    return;
  }
  if (const auto [why, legal] = request.method->refuse_cache(cache); !why.empty())
    refuse("the method is " + to_string(request.method) + why, legal);
  if (any && cache.skipped->back() >= request.steps - 1)
    refuse("skipped_steps has step " + std::to_string(cache.skipped->back()) + " of " +
               std::to_string(request.steps) + " counted from 0",
           "steps between the first and the last");
  const bool fitted = cache.kind != StepCacheKind::kTeaCache || !defaults.teacache.empty();
  if (cache.threshold > 0 && !cache.skipped && !fitted)
    refuse("no polynomial of TeaCache is known for " + defaults.name,
           "none, first-block:0.08, or teacache:0, which skips nothing and measures what a "
           "polynomial is fitted to "
           "(\"teacache\" in weft.json)");
}

void validate_method(const Request& request, const TransformerModel& model,
                     const std::string& name) {
  validate(request.method, {.steps = request.steps,
                            .token_frames = model.traits().patch[0],
                            .scheduled = !request.schedule.empty(),
                            .endless = request.endless,
                            .joint = model.joint_rows(1, 1) > 0 ? name : ""});
}

}  // namespace weft
