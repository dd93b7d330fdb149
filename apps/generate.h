#pragma once
// The job of `weft generate`, for the commands that run it and print something else.
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "apps/flags.h"
#include "engine/generator.h"

namespace weft {

// `profile` is null where none was asked for.
using ResultListener = std::function<void(const std::string& path, const RunResult& result,
                                          const nlohmann::json& profile)>;

// Runs what flags of kGenerate ask for; `on_result` hears of every finished file. Returns the exit
// code.
int generate(const Flags& flags, const ResultListener& on_result);

}  // namespace weft
