#include "engine/job/prompt_schedule.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "io/nearest.h"
#include "kernels/check.h"

namespace weft {
namespace {

// The seconds of 12, 12.5, "12" or "12.5s"; NaN for anything else.
double seconds_of(const nlohmann::json& at) {
  if (at.is_number()) return at.get<double>();
  if (!at.is_string()) return NAN;
  std::string text = at.get<std::string>();
  if (text.ends_with('s')) text.pop_back();
  char* end = nullptr;
  const double seconds = std::strtod(text.c_str(), &end);
  const bool decimal = text.find_first_not_of("0123456789.eE+-") == std::string::npos;
  return text.empty() || !decimal || *end ? NAN : seconds;
}

}  // namespace

std::vector<ScheduledPrompt> read_prompt_schedule(const nlohmann::json& entries,
                                                  const std::string& label) {
  std::vector<ScheduledPrompt> schedule;
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::kUsage, label + ": entry " + std::to_string(schedule.size() + 1) + what);
  };
  if (!entries.is_array())
    throw Error(ErrorKind::kUsage, label + " is " + entries.dump() +
                                       ", legal: entries {\"at\": \"12s\", \"prompt\": TEXT}");
  for (const nlohmann::json& entry : entries) {
    if (!entry.is_object())
      refuse(" is " + entry.dump() + ", legal: {\"at\": \"12s\", \"prompt\": TEXT}");
    for (const auto& [key, value] : entry.items())
      if (key != "at" && key != "prompt") {
        const std::vector<std::string> legal{"at", "prompt"};
        refuse(" has the field " + key + ", legal: at, prompt" + did_you_mean(nearest(key, legal)));
      }
    if (!entry.contains("at") || !entry.contains("prompt"))
      refuse(std::string(" has no ") + (entry.contains("at") ? "prompt" : "at"));
    const double seconds = seconds_of(entry["at"]);
    const double after = schedule.empty() ? 0 : schedule.back().seconds;
    if (!std::isfinite(seconds) || !(seconds > after))
      refuse(": at is " + entry["at"].dump() + ", legal: seconds above " + shown(after) +
             ", as 12 or \"12s\"");
    if (!entry["prompt"].is_string())
      refuse(": prompt is " + entry["prompt"].dump() + ", legal: a text");
    schedule.push_back({seconds, entry["prompt"].get<std::string>()});
  }
  return schedule;
}

Json to_json(std::span<const ScheduledPrompt> schedule) {
  Json entries = Json::array();
  for (const ScheduledPrompt& each : schedule)
    entries.push_back({{"at", each.seconds}, {"prompt", each.prompt}});
  return entries;
}

}  // namespace weft
