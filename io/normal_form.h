#pragma once
// Unicode normal forms (ICU).
#include <string>
#include <string_view>

namespace weft {

// Surrogates and values above U+10FFFF read as U+FFFD; at most 2^28 code points.
std::u32string to_nfc(std::u32string text);
std::u32string to_nfkc(std::u32string_view text);

}  // namespace weft
