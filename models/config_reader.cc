#include "models/config_reader.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace weft {

namespace {

std::string join(const std::vector<std::string>& parts, const char* separator = ", ") {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : separator) + part;
  return text;
}

}  // namespace

nlohmann::json read_config(const std::string& path) {
  nlohmann::json config = read_json_file(path);
  if (!config.is_object()) refuse_model(path, "not a JSON object");
  return config;
}

void check_rotary_axes(const std::string& key, const std::array<int64_t, 3>& columns,
                       int64_t head_columns, const std::string& path) {
  int64_t sum = 0;
  for (const int64_t count : columns) {
    if (count % 2) refuse_model(path, key, " holds ", count, " (legal: even numbers)");
    sum += count;
  }
  if (sum != head_columns)
    refuse_model(path, key, " adds up to ", sum, ", a head has ", head_columns);
}

std::array<int, 3> rotary_pairs(const std::array<int64_t, 3>& columns) {
  std::array<int, 3> pairs;
  for (size_t axis = 0; axis < pairs.size(); ++axis)
    pairs[axis] = static_cast<int>(columns[axis] / 2);
  return pairs;
}

ConfigReader::ConfigReader(const std::string& path) : ConfigReader(read_config(path), path) {}

ConfigReader::ConfigReader(const nlohmann::json& object, std::string path)
    : config_(std::make_shared<const nlohmann::json>(object)), path_(std::move(path)) {}

bool ConfigReader::has(const char* key) const { return json_has(*config_, key); }

void ConfigReader::required(const std::vector<const char*>& keys) {
  ignored(keys);
  for (const char* key : keys)
    if (!has(key)) missing_.push_back(key);
}

void ConfigReader::ignored(const std::vector<const char*>& keys) {
  known_.insert(known_.end(), keys.begin(), keys.end());
}

void ConfigReader::only(const char* key, const std::vector<Json>& legal, const std::string& why) {
  ignored({key});
  if (!has(key)) return;
  std::vector<std::string> texts;
  for (const Json& value : legal) {
    if (config_->at(key) == value.operator nlohmann::json()) return;
    texts.push_back(value.dump());
  }
  refuse(key, "legal: " + join(texts) + (why.empty() ? "" : "; ") + why);
}

void ConfigReader::not_null(const char* key) {
  if (config_->contains(key) && !has(key)) refuse(key, "it may be absent, but not null");
}

void ConfigReader::same(const char* key, const char* other) {
  ignored({key});
  if (has(key) && has(other) && config_->at(key) != config_->at(other))
    refuse(key, text_of("legal: the value of ", other, ", ", config_->at(other).dump()));
}

void ConfigReader::divides(const char* key, const char* whole) {
  if (!has(key) || !has(whole)) return;
  const nlohmann::json &part = config_->at(key), &all = config_->at(whole);
  if (part.is_number() && all.is_number() && part > 0 &&
      std::fmod(all.get<double>(), part.get<double>()) != 0)
    refuse(key, text_of("legal: a divisor of ", whole, ", ", all.dump()));
}

void ConfigReader::refuse(const char* key, const std::string& why) {
  refused_.push_back(text_of(key, " = ", config_->at(key).dump(), " (", why, ")"));
}

ConfigReader ConfigReader::part(const char* key) {
  ignored({key});
  const nlohmann::json& value = config_->at(key);
  if (!value.is_object()) refuse_model(path_, key, " = ", value.dump(), " (legal: an object)");
  return ConfigReader(value, text_of(path_, ": ", key));
}

void ConfigReader::take(const std::function<void()>& get) {
  try {
    get();
  } catch (const Error& error) {
    illegal_.push_back(std::string(error.what()).substr(path_.size() + 2));  // without the path
  }
}

void ConfigReader::check(const std::string& key, double value, double rounded,
                         const NumberRange& legal) const {
  if (!(rounded >= legal.min && rounded <= legal.max))
    refuse_model(path_, "\"", key, "\" is ",
                 std::isfinite(value) ? Json(value).dump() : std::to_string(value), ", must be ",
                 legal.words);
}

void ConfigReader::read(const char* key, bool& out) {
  take([&] { out = json_bool(*config_, key, path_); });
}
void ConfigReader::read(const char* key, std::string& out) {
  take([&] { out = json_string(*config_, key, path_); });
}
void ConfigReader::read(const char* key, std::vector<bool>& out) {
  take([&] { out = json_bools(*config_, key, path_); });
}
void ConfigReader::read(const char* key, std::vector<std::string>& out) {
  take([&] { out = json_strings(*config_, key, path_); });
}
void ConfigReader::read(const char* key, std::vector<int64_t>& out, const IntRange& legal,
                        const size_t& most) {
  take([&] {
    const std::vector<int64_t> values = json_ints(*config_, key, path_, legal);
    if (values.empty() || values.size() > most)
      refuse_model(path_, key, " = ", config_->at(key).dump(), " (legal: 1 to ", most, " values)");
    out = values;
  });
}
void ConfigReader::read(const char* key, std::array<int64_t, 3>& out, const IntRange& legal) {
  take([&] {
    const std::vector<int64_t> values = json_ints(*config_, key, path_, legal);
    if (values.size() != out.size())
      refuse_model(path_, key, " must have 3 values (frames, rows, columns)");
    std::ranges::copy(values, out.begin());
  });
}

void ConfigReader::check_quantization(const nlohmann::json& quantization) {
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

void ConfigReader::finish(const std::string& kind, OtherKeys others) {
  std::ranges::sort(known_);
  known_.erase(std::unique(known_.begin(), known_.end()), known_.end());
  for (const auto& [key, value] : config_->items()) {
    if (others == OtherKeys::kIgnored || key.starts_with('_')) continue;
    if (key == "quantization_config")
      check_quantization(value);
    else if (!std::ranges::binary_search(known_, key))
      unknown_.push_back(key);
  }
  std::string faults;
  if (!missing_.empty()) faults += "; missing: " + join(missing_);
  if (!refused_.empty()) faults += "; not supported: " + join(refused_);
  if (!illegal_.empty()) faults += "; not legal: " + join(illegal_, "; ");
  if (!unknown_.empty())
    faults += "; unknown: " + join(unknown_) + " (known: " + join(known_) + ")";
  if (!faults.empty()) throw Error(ErrorKind::kModel, path_ + " is not " + kind + faults);
}

}  // namespace weft
