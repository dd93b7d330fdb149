#include "models/lora/peft_config.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "io/weights/safetensors_header.h"

namespace weft {
namespace {

constexpr const char kAlpha[] = "lora_alpha", kRoot[] = "use_rslora", kType[] = "peft_type";
constexpr const char kAlphaPattern[] = "alpha_pattern", kRankPattern[] = "rank_pattern";
constexpr const char kPeftMetadata[] = "lora_adapter_metadata";
constexpr const char kTransformerSection[] = "transformer.";

// The keys of an object of numbers in the order of the text, where they follow its own name.
std::vector<std::string> in_order(const nlohmann::json& pattern, const std::string& field,
                                  const std::vector<std::string>& keys) {
  const auto size = static_cast<std::ptrdiff_t>(pattern.size());
  for (auto at = std::ranges::find(keys, field); at != keys.end();
       at = std::find(at, keys.end(), field)) {
    ++at;
    if (keys.end() - at >= size &&
        std::all_of(at, at + size, [&](const std::string& key) { return pattern.contains(key); }))
      return {at, at + size};
  }
  return {};
}

}  // namespace

SplitPattern module_pattern(const std::string& key, const std::string& what) {
  return SplitPattern::from_python("\\A(.*\\.)?(" + key + ")\\Z", what);
}

PeftConfig::PeftConfig(const TensorFile& file, const std::string& path, bool from_peft) {
  if (const auto found = file.metadata().find(kPeftMetadata); found != file.metadata().end()) {
    what_ = path + ": " + kPeftMetadata;
    read(found->second);
  } else if (from_peft) {
    what_ = (std::filesystem::path(path).parent_path() / "adapter_config.json").string();
    if (std::filesystem::exists(what_)) read(read_text_file(what_, JsonLimits().bytes));
  }
}

void PeftConfig::read(const std::string& text) {
  std::vector<std::string> keys;
  const nlohmann::json config = parse_json(text, what_, JsonDialect::kPython, {}, &keys);
  if (!config.is_object()) return;
  for (const auto& item : config.items())
    if (item.key().ends_with(kType) && item.value().is_string() && item.value() != "LORA")
      throw Error(ErrorKind::kModel, what_ + ": " + item.key() + " is '" +
                                         item.value().get<std::string>() + "', legal: LORA");
  for (const auto& item : config.items())
    for (const std::string end : {kAlpha, kRoot, kAlphaPattern, kRankPattern}) {
      const std::string& field = item.key();
      if (!field.ends_with(end) || !json_has(config, field)) continue;
      Section& section = sections_[field.substr(0, field.size() - end.size())];
      if (end == kAlpha) section.alpha = json_number(config, field, what_);
      if (end == kRoot) section.root = json_bool(config, field, what_);
      if (end == kAlpha || end == kRoot) continue;
      if (!item.value().is_object())
        throw Error(ErrorKind::kModel, what_ + ": " + field + " is not an object");
      std::vector<Entry>& entries = end == kAlphaPattern ? section.alphas : section.ranks;
      for (const auto& entry : item.value().items())  // before their order is found
        json_number(item.value(), entry.key(), what_ + ": " + field);
      for (const std::string& key : in_order(item.value(), field, keys))
        entries.push_back({key, module_pattern(key, what_ + ": " + field + ": " + quoted_name(key)),
                           json_number(item.value(), key, what_ + ": " + field)});
    }
}

PeftConfig::Scale PeftConfig::scale(const LoraName& module, const SplitPattern::TimeLimit& limit) {
  const auto taken = [&](std::vector<Entry>& entries) -> std::optional<double> {
    for (Entry& entry : entries)
      if (!entry.pattern.find_all(module.key, limit).empty()) {
        entry.used = true;
        return entry.value;
      }
    return std::nullopt;
  };
  const std::string own = module.module.substr(0, module.module.find('.')) + ".";
  for (const std::string& prefix :
       {own, std::string(module.text ? "" : kTransformerSection), std::string()})
    if (const auto found = sections_.find(prefix); found != sections_.end()) {
      Section& section = found->second;
      const std::optional<double> alpha = taken(section.alphas);
      return {.alpha = alpha ? alpha : section.alpha,
              .rank = taken(section.ranks),
              .root = section.root};
    }
  return {};
}

size_t PeftConfig::keys() const {
  size_t count = 0;
  for (const auto& [prefix, section] : sections_)
    count += section.alphas.size() + section.ranks.size();
  return count;
}

void PeftConfig::tell_unused(std::vector<std::string>& notes) const {
  for (const auto& [prefix, section] : sections_)
    for (const auto& [field, entries] :
         {std::pair{kAlphaPattern, &section.alphas}, {kRankPattern, &section.ranks}}) {
      std::vector<std::string> unused;
      for (const Entry& entry : *entries)
        if (!entry.used) unused.push_back(entry.text);
      if (!unused.empty())
        notes.push_back(what_ + ": " + prefix + field +
                        " has keys that apply to no module, because none matches or an earlier key "
                        "does, " +
                        counted(unused, "keys"));
    }
}

}  // namespace weft
