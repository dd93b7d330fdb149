#include "models/config_check.h"

#include <algorithm>
#include <nlohmann/json.hpp>

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

void read_axes(const nlohmann::json& config, const std::string& key, const std::string& path,
               const IntRange& legal, std::array<int64_t, 3>& out) {
  if (!json_has(config, key)) return;
  const std::vector<int64_t> values = json_ints(config, key, path, legal);
  if (values.size() != out.size())
    throw Error(ErrorKind::kModel,
                path + ": " + key + " must have 3 values (frames, rows, columns)");
  std::ranges::copy(values, out.begin());
}

void check_rotary_axes(const std::string& key, const std::array<int64_t, 3>& columns,
                       int64_t head_columns, const std::string& path) {
  int64_t sum = 0;
  for (const int64_t count : columns) {
    if (count % 2)
      throw Error(ErrorKind::kModel,
                  path + ": " + key + " holds " + std::to_string(count) + " (legal: even numbers)");
    sum += count;
  }
  if (sum != head_columns)
    throw Error(ErrorKind::kModel, path + ": " + key + " adds up to " + std::to_string(sum) +
                                       ", a head has " + std::to_string(head_columns));
}

std::array<int, 3> rotary_pairs(const std::array<int64_t, 3>& columns) {
  std::array<int, 3> pairs;
  for (size_t axis = 0; axis < pairs.size(); ++axis)
    pairs[axis] = static_cast<int>(columns[axis] / 2);
  return pairs;
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
    if (key == "quantization_config")
      check_quantization(value);
    else if (!key.starts_with('_') && !std::ranges::binary_search(known_, key))
      unknown_.push_back(key);
}

void ConfigCheck::check_quantization(const nlohmann::json& quantization) {
  if (quantization.is_null()) return;
  const std::string path = path_ + ": quantization_config";
  const std::string method = json_string_or(quantization, "quant_method", path, "none named"),
                    form = json_string_or(quantization, "format", path, "");
  const bool f8 = method == "fp8" || (method == "compressed-tensors" &&
                                      (form == "float-quantized" || form == "naive-quantized"));
  if (!f8 && method != "gguf")
    refuse("quantization_config", "its quant_method is " + method +
                                      "; legal: fp8 and gguf, whose tensors say how they are "
                                      "scaled; take the weights in bf16, f8 or GGUF");
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
