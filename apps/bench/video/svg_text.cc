#include "apps/bench/video/svg_text.h"

#include <cstdarg>
#include <cstdio>

namespace weft {

std::string shaped(const char* format, ...) {
  char text[256];
  va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof text, format, values);
  va_end(values);
  return text;
}

std::string label(double x, double y, const std::string& text) {
  std::string escaped;
  for (const char c : text) escaped += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
  return shaped("<text x=\"%.1f\" y=\"%.1f\">", x, y) + escaped + "</text>\n";
}

}  // namespace weft
