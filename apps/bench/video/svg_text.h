#pragma once
// Pieces of SVG pictures.
#include <string>

namespace weft {

// snprintf as a string of at most 255 characters.
__attribute__((format(printf, 1, 2))) std::string shaped(const char* format, ...);

// A text element whose left end is at (x, y).
std::string label(double x, double y, const std::string& text);

}  // namespace weft
