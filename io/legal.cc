#include "io/legal.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>

#include "io/media_time.h"
#include "io/nearest.h"
#include "kernels/check.h"

namespace weft {
void GivenText::refuse(const std::string& rule) const {
  throw Error(ErrorKind::kUsage, label + " is '" + text + "', legal: " + rule);
}

double GivenText::number() const {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const bool decimal = text.find_first_not_of("0123456789.eE+-") == std::string::npos;
  if (!decimal || *end || end == text.c_str() || !std::isfinite(value))
    refuse(std::string("a finite number, ") + legal);
  return in_range(value);
}

double GivenText::rate() const {
  const size_t slash = text.find('/');
  if (slash == std::string::npos) return exact_rate(number());
  const std::string parts[] = {text.substr(0, slash), text.substr(slash + 1)};
  for (const std::string& part : parts)
    if (part.empty() || part.size() > 9 ||
        part.find_first_not_of("0123456789") != std::string::npos || std::stoi(part) == 0)
      refuse(std::string("a number or a fraction as 30000/1001, ") + legal);
  return in_range(std::stod(parts[0]) / std::stod(parts[1]));
}

double GivenText::in_range(double value) const {
  const std::string range = legal;
  const size_t dots = range.find(" ... ");
  const std::string low = range.substr(0, dots), high = range.substr(dots + 5);
  const bool below = value < std::stod(low);
  if (below || value > std::stod(high))
    throw Error(ErrorKind::kUsage,
                label + " is " + text + ", legal: " + range + "; nearest: " + (below ? low : high));
  return value;
}

int64_t GivenText::whole_number() const {
  char* end = nullptr;
  (void)std::strtoll(text.c_str(), &end, 10);
  if (*end || end == text.c_str()) refuse(std::string("a whole number, ") + legal);
  return static_cast<int64_t>(number());  // the ends of every range are exact in a double
}

const std::string& GivenText::one_of() const {
  const std::vector<std::string> values = split(legal, '|');
  if (std::ranges::find(values, text) == values.end())
    refuse(legal + did_you_mean(nearest(text, values)));
  return text;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);)
    if (!part.empty()) parts.push_back(part);
  return parts;
}

}  // namespace weft
