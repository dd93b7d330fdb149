#pragma once
// Request: the settings of one generation, and the limits that a model sets for them.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/job/given_picture.h"
#include "engine/job/given_sound.h"
#include "engine/methods/method.h"
#include "engine/methods/step_cache.h"
#include "engine/sampling/noise_pool.h"
#include "models/lora/lora.h"
#include "models/registry.h"

namespace weft {

class OpenModel;

// Incremented whenever the results of default settings change, because a seed must then give other
// frames than before.
inline constexpr int kNumericsEpoch = 6;

// The largest request. Memory plans up to these sizes fit in 64-bit integers.
inline constexpr int64_t kMaxSide = 16384, kMaxFrames = 1 << 20;

// From `seconds` of the video on it shows `prompt`.
struct ScheduledPrompt {
  double seconds = 0;
  std::string prompt;
};

// Zero, empty and nullopt mean the model's default. Generator::resolve fills them in.
struct Request {
  std::string prompt;
  std::optional<std::string> negative_prompt;
  int64_t width = 0, height = 0;
  int64_t frames = 0;
  bool endless = false;  // until the job is stopped, `frames` at most; the method is the queue
  double fps = 0;
  int steps = 0;
  std::optional<double> guidance_scale;    // for the high-noise expert, or the only one
  std::optional<double> guidance_scale_2;  // for the low-noise expert; default: guidance_scale
  std::optional<double> flow_shift;        // default: scheduler_config.json
  std::string solver;                      // default: scheduler_config.json
  std::vector<double> sigmas;              // the grid itself, without the final 0
  uint64_t seed = 0;
  Rng rng = Rng::kPortable;
  Method method{};
  StepCache cache{};
  NoiseMode noise = NoiseMode::kPool;        // of the queue
  PartFiles files{};                         // that the model was opened with, beside the LoRAs
  std::optional<std::vector<Lora>> loras{};  // nullopt: those that the model was opened with
  std::vector<ScheduledPrompt> schedule{};   // after `prompt`; the queue alone can change prompts
  GivenPicture image{}, last_image{};        // the first and the last frame, where they are given
  PictureFit image_fit{};                    // brings them to the clip's size
  // Pictures of any size whose content the result takes up, in this order.
  std::vector<GivenPicture> references{};
  GivenSound audio{};  // that the video follows
};

// Returns whether the job keeps its final latent in a file until it is decoded. Others decode one
// part after the other.
inline bool keeps_latent(const Request& request) {
  return !request.method->in_segments() && !request.audio.given();
}

// The limits that a request is checked against.
struct ModelLimits {
  int64_t size_multiple = 16;  // pixels per token, both ways
  int64_t frame_multiple = 4;  // frames = frame_multiple k + 1; 1: any number
  int64_t max_frames = kMaxFrames;
  int experts = 1;
  double boundary_ratio = 0;  // two experts: truncated t >= boundary_ratio * 1000 is high noise
  int64_t text_length = 512;
  bool guided = true;  // false: guidance has no meaning for the model
};

// The legal values of a size or a frame count: multiple * n + offset, from `low` to `high`.
struct Grid {
  int64_t multiple, offset, low, high;

  bool holds(int64_t value) const {
    return value >= low && value <= high && (value - offset) % multiple == 0;
  }
  std::string rule() const;                           // "multiples of 16", "4n+1"
  std::vector<int64_t> nearest(int64_t value) const;  // the nearest legal values, at most two
};
// Error(kUsage) where `value` is not on the grid; `where` begins the message: "--width is 40".
void check_on_grid(const std::string& where, int64_t value, const Grid& grid);
Grid side_grid(const ModelLimits& limits);   // of width and height
Grid frame_grid(const ModelLimits& limits);  // of the frame count

std::string shown(double value);  // with at most six digits

// Returns `request` with every open field filled from `defaults`.
Request resolve(const Request& request, const DefaultSettings& defaults);

// Returns the request with the files with which its model was opened, and with its LoRAs unless it
// has others. Error(kUsage) where it has other files.
Request take_opened(const OpenModel& model, Request request);

// Checks a resolved request. Throws Error(kUsage) that names the field, its value and the legal
// values; for sizes and frame counts it names the two nearest legal ones.
void validate(const Request& request, const ModelLimits& limits);
// Refuses a resolved method that the model, which has this name, or other fields do not go with.
void validate_method(const Request& request, const TransformerModel& model,
                     const std::string& name);
// The same for its step cache.
void validate_cache(const Request& request, const DefaultSettings& defaults);

}  // namespace weft
