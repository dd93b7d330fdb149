#include "apps/request_flags.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>

#include "apps/progress.h"

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
                "--size " + flags.text("size") + " contradicts --width or --height");
  request.width = width;
  request.height = height;
}

void read_frames(const Flags& flags, const Generator& generator, Request& request) {
  request.fps = flags.real("fps").value_or(0);
  request.frames = flags.integer("num-frames").value_or(0);
  const int64_t multiple = generator.limits().frame_multiple;
  auto nearest_legal = [&](double frames) {
    return std::max<int64_t>(0, std::llround((frames - 1) / double(multiple))) * multiple + 1;
  };
  if (const auto seconds = flags.real("seconds")) {
    const double fps = request.fps > 0 ? request.fps : generator.defaults().fps;
    request.frames = nearest_legal(*seconds * fps);
    if (informative(flags))
      std::fprintf(stderr, "weft: --seconds %g at %g fps: %lld frames, the nearest legal count\n",
                   *seconds, fps, static_cast<long long>(request.frames));
  } else if (request.frames && flags.on("round-frames")) {
    request.frames = nearest_legal(static_cast<double>(request.frames));
  }
}

std::vector<double> sigmas_of(const std::string& text) {
  std::vector<double> sigmas;
  for (const char* at = text.c_str(); *at;) {
    char* end = nullptr;
    sigmas.push_back(std::strtod(at, &end));
    if (end == at || (*end && *end != ','))
      throw Error(ErrorKind::kUsage,
                  "--sigmas is '" + text + "', legal: falling numbers in (0, 1], comma-separated");
    at = *end ? end + 1 : end;
  }
  return sigmas;
}

// The names users know and the engine's, where they differ: the short ones are diffusers' forms.
constexpr std::pair<const char*, const char*> kSolvers[] = {
    {"unipc", "unipc-diffusers"}, {"dpm++", "dpmpp-diffusers"}, {"dpm++-wan", "dpmpp-wan"}};

std::string solver_of(const std::string& name) {
  for (const auto& [flag, engine] : kSolvers)
    if (name == flag) return engine;
  return name;
}

}  // namespace

std::string text_argument(const std::string& flag, const std::string& value) {
  std::string text = value;
  if (value == "-") {
    text.assign(std::istreambuf_iterator<char>(std::cin), {});
  } else if (value.starts_with('@')) {
    std::ifstream file(value.substr(1), std::ios::binary);
    if (!file) throw Error(ErrorKind::kUsage, "--" + flag + ": cannot read " + value.substr(1));
    text.assign(std::istreambuf_iterator<char>(file), {});
  }
  if (value == "-" || value.starts_with('@'))
    while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
  return text;
}

uint64_t seed_of(const Flags& flags) {
  const std::string text = flags.text("seed");
  if (text.empty() || text == "-1") return std::random_device{}() & 0xffffffffu;
  errno = 0;
  char* end = nullptr;
  const uint64_t seed = std::strtoull(text.c_str(), &end, 10);
  if (errno || *end || text.front() < '0' || text.front() > '9')
    throw Error(ErrorKind::kUsage,
                "--seed is '" + text + "', legal: 0 ... 18446744073709551615, or -1 for random");
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
    throw Error(ErrorKind::kUsage, "--size is '" + size + "', legal: WxH or W*H, as 832x480");
  return std::pair<int64_t, int64_t>{width, height};
}

std::vector<std::string> prompts_of(const Flags& flags) {
  const std::string path = flags.text("prompt-file");
  if (path.empty()) {
    if (!flags.given("prompt"))
      throw Error(ErrorKind::kUsage, "weft generate needs --prompt TEXT or --prompt-file FILE");
    return {text_argument("prompt", flags.text("prompt"))};
  }
  if (flags.given("prompt"))
    throw Error(ErrorKind::kUsage, "--prompt and --prompt-file exclude each other");
  std::ifstream file(path);
  if (!file) throw Error(ErrorKind::kUsage, "--prompt-file: cannot read " + path);
  std::vector<std::string> prompts;
  for (std::string line; std::getline(file, line);) {
    if (line.ends_with('\r')) line.pop_back();
    const size_t first = line.find_first_not_of(" \t");
    if (first != std::string::npos && line[first] != '#') prompts.push_back(line);
  }
  if (prompts.empty()) throw Error(ErrorKind::kUsage, "--prompt-file: " + path + " has no prompt");
  return prompts;
}

std::string solver_flag(const std::string& name) {
  for (const auto& [flag, engine] : kSolvers)
    if (name == engine) return flag;
  return name;
}

uint64_t bytes_of(const std::string& flag, const std::string& text) {
  if (text.empty()) return 0;
  char* end = nullptr;
  double value = std::strtod(text.c_str(), &end);
  const std::string unit = end;
  constexpr const char* kUnits[] = {"", "K", "M", "G", "T"};
  for (const char* known : kUnits) {
    if (value > 0 && value < 0x1p63 && end != text.c_str() &&
        (unit == known || (*known && unit == std::string(known) + "iB")))
      return static_cast<uint64_t>(value);
    value *= 1024;
  }
  throw Error(ErrorKind::kUsage, "--" + flag + " is '" + text +
                                     "', legal: a positive number with K, M, G or T, as 20G");
}

void check_request_flags(const Flags& flags) {
  Request unused;
  read_size(flags, unused);
  seed_of(flags);
  const std::vector<double> sigmas = sigmas_of(flags.text("sigmas"));
  const auto steps = flags.integer("steps");
  if (!sigmas.empty() && steps && *steps != static_cast<int64_t>(sigmas.size()))
    throw Error(ErrorKind::kUsage, "--steps is " + std::to_string(*steps) + ", but --sigmas has " +
                                       std::to_string(sigmas.size()) + " values");
  if (flags.given("seconds") && flags.given("num-frames"))
    throw Error(ErrorKind::kUsage, "--seconds and --num-frames exclude each other");
  bytes_of("memory-limit", flags.text("memory-limit"));
}

Request request_of(const Flags& flags, const Generator& generator) {
  check_request_flags(flags);
  Request request;
  if (flags.given("negative-prompt"))
    request.negative_prompt = text_argument("negative-prompt", flags.text("negative-prompt"));
  read_size(flags, request);
  read_frames(flags, generator, request);
  request.sigmas = sigmas_of(flags.text("sigmas"));
  request.steps = static_cast<int>(flags.integer("steps").value_or(0));
  if (!request.sigmas.empty()) request.steps = static_cast<int>(request.sigmas.size());
  request.guidance_scale = flags.real("guidance-scale");
  request.guidance_scale_2 = flags.real("guidance-scale-2");
  request.flow_shift = flags.real("flow-shift");
  request.solver = solver_of(flags.text("solver"));
  request.seed = seed_of(flags);
  request.rng = rng_from_name(flags.text("rng"));
  return request;
}

}  // namespace weft
