#pragma once
// The job of `weft generate`, also for commands that run it and print something else.
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "apps/command_line/flags.h"
#include "apps/generate/offload_report.h"
#include "engine/generation/generator.h"

namespace weft {

// The facts of a finished file, for its result line and its sidecar.
struct Finished {
  std::string path;
  RunResult result;
  std::string expanded_from;  // the short prompt from which a language model wrote this one, or ""
  nlohmann::json profile;     // null where none was asked for
  UploadForecast upload{};    // predicted before the job, where weights are copied in all the time
  std::optional<PromptCut> cut{};  // where the prompt was too long for the text encoder
};
// {"tokens", "read", "lost"}
nlohmann::json to_json(const PromptCut& cut);
using ResultListener = std::function<void(const Finished&)>;

// Runs the job of these flags of kGenerate and calls `on_result` for every finished file.
// `expanded_from` is recorded where an earlier job wrote the prompt from it. Returns the exit code.
int generate(const Flags& flags, const ResultListener& on_result,
             const std::string& expanded_from = "");

}  // namespace weft
