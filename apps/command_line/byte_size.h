#pragma once
// Sizes in bytes as users write them.
#include <cstdint>
#include <optional>
#include <string>

namespace weft {

// "20G", "1.5 GiB", "20GB", "1000000": bytes; nullopt where the text is no size above 0 and below
// 2^63. K, M, G, T and KiB ... TiB are powers of 1024; KB, MB, GB and TB are powers of 1000.
// Capitals do not matter.
std::optional<uint64_t> parse_byte_size(const std::string& text);

// The legal values, for messages.
inline constexpr const char* kByteSizeRule =
    "a size above 0 in B, K, M, G, T or KiB, MiB, GiB, TiB (powers of 1024) or KB, MB, GB, TB "
    "(powers of 1000), as 20G";

}  // namespace weft
