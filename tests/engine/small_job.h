#pragma once
// The request and options of one small generation, which several tests use.
#include <string>

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

}  // namespace weft::test
