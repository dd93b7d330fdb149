#pragma once
// Texts that the parts of a server share: times and random names.
#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace weft {

std::string utc_text(std::chrono::system_clock::time_point time);  // "2026-01-31T09:05:00.123Z"

// The bytes of base64 in the alphabet of the standard or of URLs (RFC 4648), whose padding may be
// missing; nullopt where the text is none.
std::optional<std::string> base64_bytes(std::string_view text);
// Base64 in the standard's alphabet, with padding.
std::string base64_text(std::string_view bytes);

// Eight hex digits per word, which nobody can guess.
std::string random_hex(int words);

}  // namespace weft
