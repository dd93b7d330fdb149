#pragma once
// The prompt cleaning that Wan was trained with.
#include <string>
#include <string_view>

namespace weft {

// Applies ftfy.fix_text, without its repair of wrongly decoded text, and then html.unescape twice.
// Then runs of white space become one space, and none is left at the ends. Ill-formed UTF-8 becomes
// U+FFFD.
std::string clean_prompt(std::string_view text);

}  // namespace weft
