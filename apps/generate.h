#pragma once
// The job of `weft generate`, for the commands that run it and print something else.
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/flags.h"
#include "apps/streaming.h"
#include "engine/generator.h"

namespace weft {

// What is told of a finished file.
struct Finished {
  std::string path;
  RunResult result;
  std::string expanded_from;  // what a language model made the prompt of, or ""
  nlohmann::json profile;     // null where none was asked for
  UploadForecast upload{};    // of weights that pass through the device, made before the job
};
using ResultListener = std::function<void(const Finished&)>;

// Runs what flags of kGenerate ask for; `on_result` hears of every finished file. Where the prompt
// is what another job made of `expanded_from`, that is recorded again. Returns the exit code.
int generate(const Flags& flags, const ResultListener& on_result,
             const std::string& expanded_from = "");

}  // namespace weft
