// LoRAs as a flag and a record spell them.
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "kernels/check.h"
#include "models/lora/lora.h"

namespace weft {
namespace {

Lora parse_lora(const std::string& text, const std::string& label) {
  constexpr double kLargest = 100;
  Lora lora{.file = text};
  namespace fs = std::filesystem;
  const auto cut = [&] {  // the part behind the last colon
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
    if (*end || !(std::abs(lora.scale) <= kLargest))
      throw Error(ErrorKind::kUsage, label + " is '" + text +
                                         "', legal: FILE, FILE:SCALE or FILE:SCALE:EXPERT with a "
                                         "scale from -100 to 100 and high or low");
    lora.file.resize(at);
  }
  if (lora.file.empty())
    throw Error(ErrorKind::kUsage, label + " is '" + text + "', legal: FILE[:SCALE[:high|low]]");
  lora.file = fs::absolute(lora.file).lexically_normal().string();
  return lora;
}

}  // namespace

std::string to_string(const Lora& lora) {
  std::array<char, 32> scale;
  std::snprintf(scale.data(), scale.size(), "%.9g", lora.scale);
  const bool all = lora.expert == LoraExpert::kAll;
  if (all && lora.scale == 1 && lora.file.find(':') == std::string::npos) return lora.file;
  return lora.file + ":" + scale.data() +
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
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    loras.push_back(parse_lora(text.substr(at, end - at), label));
    at = end + 1;
  }
  return loras;
}

}  // namespace weft
