#pragma once
// The request and options of one small generation, which several tests use.
#include <atomic>
#include <cmath>
#include <string>
#include <vector>

#include "engine/generation/generator.h"
#include "tests/support/small_model.h"

namespace weft::test {

inline Request job() {
  Request request;
  request.prompt = "a red ball on a gray floor";
  request.negative_prompt = "blurry";
  request.width = request.height = 32;
  request.frames = 9;
  request.steps = 2;
  request.guidance_scale = 5;
  request.guidance_scale_2 = 5;
  request.seed = 7;
  return request;
}

// Keeps the latents at the end of a job.
struct LatentTap final : PipelineTap {
  std::vector<float> latents;
  void tap(const char* name, const TensorView& value) override {
    if (std::string(name) == "latents_final")
      latents.assign(value.as<float>(), value.as<float>() + value.count());
  }
};

inline GeneratorOptions options_of(DType dtype) {
  GeneratorOptions options;
  options.dtype = dtype;
  options.threads = 1;
  return options;
}

inline std::vector<float> floats_of(const TensorView& view) {
  const auto* values = view.as<float>();
  return {values, values + view.count()};
}

// Stops the job after a step, and stores the warnings it receives.
struct Stopper final : ProgressListener {
  std::atomic<bool> stop{false};
  int after = -1;
  int steps = 0;  // steps seen
  std::vector<std::string> warnings;
  void progress(const Progress& p) override {
    if (p.stage != "denoise" || p.step == 0 || p.seconds_per_step == 0) return;
    ++steps;
    if (p.step == after) stop = true;
  }
  void warning(const std::string& line) override { warnings.push_back(line); }
};

inline double rel_l2(const std::vector<float>& got, const std::vector<float>& expected) {
  if (got.size() != expected.size() || got.empty()) return INFINITY;
  double error = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(double{got[i]} - expected[i], 2);
    norm += std::pow(double{expected[i]}, 2);
  }
  return std::sqrt(error / norm);
}

}  // namespace weft::test
