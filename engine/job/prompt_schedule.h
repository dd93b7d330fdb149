#pragma once
// The JSON form of prompts that change within a video: [{"at": "12s", "prompt": ...}, ...].
#include <span>
#include <string>
#include <vector>

#include "engine/job/request.h"
#include "io/json.h"

namespace weft {

// "at" is in seconds of the video, as 12 or "12s", and ascends. Error(kUsage) that begins with
// `label` and names the entry.
std::vector<ScheduledPrompt> read_prompt_schedule(const nlohmann::json& entries,
                                                  const std::string& label);
Json to_json(std::span<const ScheduledPrompt> schedule);

}  // namespace weft
