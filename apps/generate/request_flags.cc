#include "apps/generate/request_flags.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>

#include "apps/device.h"
#include "apps/generate/progress.h"

namespace weft {
namespace {

void read_size(const Flags& flags, Request& request) {
  request.width = flags.integer("width").value_or(0);
  request.height = flags.integer("height").value_or(0);
  const auto size = size_of_flag(flags);
  if (!size) return;
  const auto [width, height] = *size;
  if ((request.width && request.width != width) || (request.height && request.height != height))
    throw Error(ErrorKind::kUsage,
                flags.label("size") + " " + flags.text("size") + " contradicts " +
                    flags.label(request.width && request.width != width ? "width" : "height"));
  request.width = width;
  request.height = height;
}

// Refuses sizes and frame counts that the model cannot draw.
void check_extents(const Flags& flags, const ModelLimits& limits, const Request& request) {
  for (const auto& [flag, value] :
       {std::pair{"width", request.width}, {"height", request.height}}) {
    if (value == 0) continue;
    const std::string number = std::to_string(value);
    check_on_grid(flags.given(flag) ? flags.label(flag) + " is " + number
                                    : flags.label("size") + " is '" + flags.text("size") +
                                          "': its " + flag + " is " + number,
                  value, side_grid(limits));
  }
  if (request.frames == 0) return;
  const std::string frames = std::to_string(request.frames);
  check_on_grid(flags.given("seconds") ? flags.label("seconds") + " is " + flags.text("seconds") +
                                             ", which is " + frames + " frames"
                                       : flags.label("num-frames") + " is " + frames,
                request.frames, frame_grid(limits));
}

void read_frames(const Flags& flags, const Generator& generator, Request& request) {
  request.fps = flags.real("fps").value_or(0);
  request.frames = flags.integer("num-frames").value_or(0);
  const int64_t multiple = generator.limits().frame_multiple;
  const auto nearest_legal = [&](double frames) {
    return std::max<int64_t>(0, std::llround((frames - 1) / double(multiple))) * multiple + 1;
  };
  if (const auto seconds = flags.real("seconds")) {
    const double fps = request.fps > 0 ? request.fps : generator.defaults().fps;
    request.frames = nearest_legal(*seconds * fps);
    if (informative(flags))
      std::fprintf(stderr,
                   "weft: --seconds %g at %g fps is %lld frames, the nearest legal number\n",
                   *seconds, fps, static_cast<long long>(request.frames));
  } else if (request.frames && flags.on("round-frames")) {
    request.frames = nearest_legal(static_cast<double>(request.frames));
  }
}

std::vector<double> sigmas_of(const Flags& flags) {
  const std::string text = flags.text("sigmas");
  std::vector<double> sigmas;
  for (const char* at = text.c_str(); *at;) {
    char* end = nullptr;
    const double sigma = std::strtod(at, &end);
    const double below = sigmas.empty() ? 2 : sigmas.back();
    if (end == at || (*end && *end != ',') || !(sigma > 0 && sigma <= 1 && sigma < below))
      throw Error(ErrorKind::kUsage,
                  flags.label("sigmas") + " is '" + text +
                      "', legal: falling numbers, at most 1 and above 0, separated by commas");
    sigmas.push_back(sigma);
    at = *end ? end + 1 : end;
  }
  return sigmas;
}

// The names of --solver and the engine's names for them, where they differ. The last one was the
// engine's name in older sidecars and checkpoints.
constexpr std::pair<const char*, const char*> kSolvers[] = {{"unipc", "unipc-diffusers"},
                                                            {"unipc-wan", "unipc-original"},
                                                            {"dpm++", "dpmpp-diffusers"},
                                                            {"dpm++-wan", "dpmpp-original"},
                                                            {"dpmpp-wan", "dpmpp-original"}};

std::string without_line_ends(std::string text) {
  while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
  return text;
}
}  // namespace

std::string standard_input() {
  return without_line_ends({std::istreambuf_iterator<char>(std::cin), {}});
}

std::string text_argument(const Flags& flags, const std::string& name) {
  const std::string value = flags.text(name);
  if (value == "-") return standard_input();
  if (!value.starts_with('@')) return value;
  std::ifstream file(value.substr(1), std::ios::binary);
  if (!file)
    throw Error(ErrorKind::kUsage, flags.label(name) + " is '" + value + "', but " +
                                       value.substr(1) + " cannot be read");
  return without_line_ends({std::istreambuf_iterator<char>(file), {}});
}

uint64_t seed_of(const Flags& flags) {
  const std::string text = flags.text("seed");
  if (text.empty() || text == "-1") return std::random_device{}() & 0xffffffffu;
  errno = 0;
  char* end = nullptr;
  const uint64_t seed = std::strtoull(text.c_str(), &end, 10);
  if (errno || *end || text.front() < '0' || text.front() > '9')
    throw Error(ErrorKind::kUsage, flags.label("seed") + " is '" + text +
                                       "', legal: 0 ... 18446744073709551615, or -1 for random");
  return seed;
}

std::optional<std::pair<int64_t, int64_t>> size_of_flag(const Flags& flags) {
  constexpr int64_t kMaxSide = 16384;
  const std::string size = flags.text("size");
  if (size.empty()) return std::nullopt;
  int width = 0, height = 0, used = 0;
  if (std::sscanf(size.c_str(), "%d%*[xX*]%d%n", &width, &height, &used) != 2 ||
      used != static_cast<int>(size.size()) || width < 1 || height < 1 || width > kMaxSide ||
      height > kMaxSide)
    throw Error(ErrorKind::kUsage,
                flags.label("size") + " is '" + size + "', legal: WxH or W*H, as 832x480");
  return std::pair<int64_t, int64_t>{width, height};
}

std::vector<std::string> prompts_of(const Flags& flags) {
  const std::string path = flags.text("prompt-file");
  if (path.empty()) {
    if (!flags.given("prompt"))
      throw Error(ErrorKind::kUsage, std::string("weft ") + command_spec(flags.command()).name +
                                         " needs --prompt TEXT or --prompt-file FILE");
    return {text_argument(flags, "prompt")};
  }
  if (flags.given("prompt"))
    throw Error(ErrorKind::kUsage, flags.label("prompt") + " and " + flags.label("prompt-file") +
                                       " exclude each other");
  std::ifstream file(path);
  if (!file)
    throw Error(ErrorKind::kUsage,
                flags.label("prompt-file") + " is '" + path + "', which cannot be read");
  std::vector<std::string> prompts;
  for (std::string line; std::getline(file, line);) {
    if (line.ends_with('\r')) line.pop_back();
    const size_t first = line.find_first_not_of(" \t");
    if (first != std::string::npos && line[first] != '#') prompts.push_back(line);
  }
  if (prompts.empty())
    throw Error(ErrorKind::kUsage,
                flags.label("prompt-file") + " is '" + path +
                    "', which has no prompt; legal: one per line, # begins a comment line");
  return prompts;
}

GeneratorOptions model_options(const Flags& flags) {
  GeneratorOptions options;
  options.dtype = compute_dtype(flags);
  options.weights = weight_format(flags);
  options.attention = attention_format(flags);
  options.vae_dtype = flags.text("vae-dtype") == "bf16" ? DType::kBF16 : DType::kF32;
  options.resident_blocks = static_cast<int>(flags.integer("resident-layers").value_or(0));
  options.memory_limit = flags.bytes("memory-limit");
  options.host_memory_limit = flags.bytes("host-memory-limit");
  return options;
}

std::string engine_solver(const std::string& name) {
  for (const auto& [flag, engine] : kSolvers)
    if (name == flag) return engine;
  return name;
}

std::string solver_flag(const std::string& name) {
  const std::string known = engine_solver(name);
  for (const auto& [flag, engine] : kSolvers)
    if (known == engine) return flag;
  return known;
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

void check_request_flags(const Flags& flags) {
  Request unused;
  read_size(flags, unused);
  seed_of(flags);
  const std::vector<double> sigmas = sigmas_of(flags);
  const auto steps = flags.integer("steps");
  if (!sigmas.empty() && steps && *steps != static_cast<int64_t>(sigmas.size()))
    throw Error(ErrorKind::kUsage, flags.label("steps") + " is " + std::to_string(*steps) +
                                       ", but " + flags.label("sigmas") + " has " +
                                       std::to_string(sigmas.size()) + " values");
  if (!sigmas.empty() && flags.given("flow-shift"))
    throw Error(ErrorKind::kUsage, flags.label("flow-shift") + " is given beside " +
                                       flags.label("sigmas") +
                                       ", which are used as they are; legal: one of the two");
  if (flags.given("seconds") && flags.given("num-frames"))
    throw Error(ErrorKind::kUsage, flags.label("seconds") + " and " + flags.label("num-frames") +
                                       " exclude each other");
}

Request request_of(const Flags& flags, const Generator& generator) {
  check_request_flags(flags);
  Request request;
  if (flags.given("negative-prompt"))
    request.negative_prompt = text_argument(flags, "negative-prompt");
  read_size(flags, request);
  read_frames(flags, generator, request);
  check_extents(flags, generator.limits(), request);
  request.sigmas = sigmas_of(flags);
  request.steps = static_cast<int>(flags.integer("steps").value_or(0));
  if (!request.sigmas.empty()) request.steps = static_cast<int>(request.sigmas.size());
  request.guidance_scale = flags.real("guidance-scale");
  request.guidance_scale_2 = flags.real("guidance-scale-2");
  if (request.guidance_scale_2 && generator.limits().experts < 2 &&
      request.guidance_scale_2 != request.guidance_scale)
    throw Error(ErrorKind::kUsage,
                flags.label("guidance-scale-2") + " is " + flags.text("guidance-scale-2") +
                    ", but this model has one expert; legal: " + "--guidance-scale alone");
  request.flow_shift = flags.real("flow-shift");
  request.solver = engine_solver(flags.text("solver"));
  request.seed = seed_of(flags);
  request.rng = rng_from_name(flags.text("rng"));
  return request;
}

}  // namespace weft
