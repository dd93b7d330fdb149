#pragma once
// Reports what a step cache skipped and how much the steps changed.
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/generation/generator.h"

namespace weft {

// {"setting": .., "skipped": .., "steps": [{"skipped", "embedding_change", "output_change",
// "error"}, ..]}.
nlohmann::json cache_json(const RunResult& result);
// "teacache:0.1, 9 of 20 steps skipped, ...", and a line per audited step.
std::string cache_text(const RunResult& result);

}  // namespace weft
