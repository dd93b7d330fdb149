// LoRAs as a flag and a record spell them.
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "io/text/path_list.h"
#include "io/text/utf8.h"
#include "kernels/check.h"
#include "models/lora/lora.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

bool is_there(const std::string& text) {
  std::error_code ignored;
  return fs::exists(path_of_text(text), ignored);
}

// Returns nullopt where the text is not legal.
std::optional<Lora> lora_of(const std::string& text) {
  constexpr double kLargest = 100;
  Lora lora{.file = text};
  const auto cut = [&] {  // the part after the last colon of what is no path
    if (is_there(lora.file)) return std::pair{std::string::npos, std::string()};
    const size_t at = lora.file.rfind(':');
    std::string last = at == std::string::npos ? "" : lora.file.substr(at + 1);
    return std::pair{at, last};
  };
  if (const auto [at, last] = cut(); last == "high" || last == "low") {
    lora.expert = last == "high" ? LoraExpert::kHigh : LoraExpert::kLow;
    lora.file.resize(at);
  }
  if (const auto [at, last] = cut(); !last.empty() && last.find('/') == std::string::npos) {
    char* end = nullptr;
    lora.scale = std::strtod(last.c_str(), &end);
    if (*end || !(std::abs(lora.scale) <= kLargest)) return std::nullopt;
    lora.file.resize(at);
  }
  if (lora.file.empty()) return std::nullopt;
  lora.file = fs::absolute(path_of_text(lora.file)).lexically_normal().string();
  return lora;
}

// A path in a list of LoRAs.
std::string listed(const std::string& path) {
  std::string out;
  for (const char c : path_text(path))
    out += c == ',' ? "\\x2c" : c == ':' ? "\\x3a" : std::string(1, c);
  return out;
}

}  // namespace

std::string to_string(const Lora& lora) {
  std::array<char, 32> scale;
  std::snprintf(scale.data(), scale.size(), "%.9g", lora.scale);
  const bool all = lora.expert == LoraExpert::kAll;
  if (all && lora.scale == 1) return listed(lora.file);
  return listed(lora.file) + ":" + scale.data() +
         (all                                ? ""
          : lora.expert == LoraExpert::kHigh ? ":high"
                                             : ":low");
}

std::string to_string(std::span<const Lora> loras) {
  std::string text;
  for (const Lora& lora : loras) text += (text.empty() ? "" : ",") + to_string(lora);
  return text;
}

std::vector<Lora> parse_loras(const std::string& text, const std::string& label) {
  std::vector<Lora> loras;
  if (text == kNoLora) return loras;
  const auto is_whole = [](const std::string& entry) {
    const std::optional<Lora> lora = lora_of(entry);
    std::error_code ignored;
    return lora && fs::exists(lora->file, ignored);
  };
  for (const std::string& entry : split_entries(text, is_whole)) {
    const std::optional<Lora> lora = lora_of(entry);
    if (!lora)
      throw Error(ErrorKind::kUsage, label + " is '" + entry +
                                         "', legal: FILE, FILE:SCALE or FILE:SCALE:EXPERT with a "
                                         "scale from -100 to 100 and high or low");
    loras.push_back(*lora);
  }
  return loras;
}

}  // namespace weft
