#pragma once
// The prompt cleaning that Wan was trained with.
#include <string>
#include <string_view>

namespace weft {

// ftfy.fix_text without its repair of wrongly decoded text, then html.unescape twice, then runs of
// white space become one space and none at the ends. Ill-formed UTF-8 reads as U+FFFD.
std::string clean_prompt(std::string_view text);

}  // namespace weft
