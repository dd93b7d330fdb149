#include "apps/command_line/byte_size.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>

namespace weft {

std::optional<uint64_t> parse_byte_size(const std::string& text) {
  if (text.empty() || !(std::isdigit(static_cast<unsigned char>(text[0])) || text[0] == '.'))
    return std::nullopt;
  if (text.size() > 1 && (text[1] == 'x' || text[1] == 'X')) return std::nullopt;  // hexadecimal
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const bool spaced = end[0] == ' ' && end[1] != 0;
  std::string unit = spaced ? end + 1 : end;
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](unsigned char c) { return std::toupper(c); });
  double scale = 0;
  if (unit.empty() || unit == "B") scale = 1;
  constexpr const char* kPrefixes[] = {"K", "M", "G", "T"};
  for (int i = 0; i < 4; ++i) {
    const std::string prefix = kPrefixes[i];
    if (unit == prefix || unit == prefix + "IB") scale = std::pow(1024.0, i + 1);
    if (unit == prefix + "B") scale = std::pow(1000.0, i + 1);
  }
  const double bytes = value * scale;
  if (!(bytes >= 1 && bytes < 0x1p63)) return std::nullopt;
  return static_cast<uint64_t>(bytes);
}

}  // namespace weft
