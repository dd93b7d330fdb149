#pragma once
// The request and options of one small generation, which several tests use.
#include <cmath>
#include <string>
#include <vector>

#include "engine/generation/generator.h"

namespace weft::test {

inline const std::string kModel = "tests/golden/pipeline_t2v/model";

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

inline GeneratorOptions options_of(DType dtype) {
  GeneratorOptions options;
  options.dtype = dtype;
  options.threads = 1;
  return options;
}

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
