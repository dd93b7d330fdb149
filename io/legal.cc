#include "io/legal.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>

#include "io/nearest.h"
#include "kernels/check.h"

namespace weft {
void GivenText::refuse(const std::string& rule) const {
  throw Error(ErrorKind::kUsage, label + " is '" + text + "', legal: " + rule);
}

double GivenText::number() const {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (*end || end == text.c_str() || !std::isfinite(value))
    refuse(std::string("a finite number, ") + legal);
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
