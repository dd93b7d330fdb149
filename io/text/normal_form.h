#pragma once
// Converts to Unicode normal forms and to lower case, with ICU.
#include <string>
#include <string_view>

namespace weft {

// Surrogates and values above U+10FFFF count as U+FFFD. At most 2^28 code points are allowed.
std::u32string to_nfc(std::u32string text);
std::u32string to_nfkc(std::u32string_view text);
// Each character on its own, whatever its neighbours or the language are.
std::u32string to_lower(std::u32string_view text);

}  // namespace weft
