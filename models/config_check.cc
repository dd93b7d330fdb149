#include "models/config_check.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "kernels/check.h"

namespace weft {

namespace {

std::string join(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

}  // namespace

nlohmann::json read_config(const std::string& path) {
  nlohmann::json config = read_json_file(path);
  if (!config.is_object()) throw Error(ErrorKind::kModel, path + ": not a JSON object");
  return config;
}

void ConfigCheck::keys(const std::vector<std::string>& required,
                       const std::vector<std::string>& optional) {
  known_ = required;
  known_.insert(known_.end(), optional.begin(), optional.end());
  std::ranges::sort(known_);
  known_.erase(std::unique(known_.begin(), known_.end()), known_.end());
  for (const std::string& key : required)
    if (!json_has(config_, key)) missing_.push_back(key);
  for (const auto& [key, value] : config_.items())
    if (!key.starts_with('_') && !std::ranges::binary_search(known_, key)) unknown_.push_back(key);
}

void ConfigCheck::refuse(const std::string& key, const std::string& why) {
  refused_.push_back(key + " = " + config_.at(key).dump() + " (" + why + ")");
}

void ConfigCheck::finish(const std::string& kind) const {
  std::string faults;
  if (!missing_.empty()) faults += "; missing: " + join(missing_);
  if (!refused_.empty()) faults += "; not supported: " + join(refused_);
  if (!unknown_.empty())
    faults += "; unknown: " + join(unknown_) + " (known: " + join(known_) + ")";
  if (!faults.empty()) throw Error(ErrorKind::kModel, path_ + " is not " + kind + faults);
}

}  // namespace weft
