#pragma once
// Tells what a file is that is no weights file of the kind its name says.
#include <string>
#include <string_view>

namespace weft {

// The bytes of a file's beginning that file_kind() looks at.
inline constexpr size_t kFileKindBytes = 512;

// Says what a file is by its first bytes: "is an HTML page, not the weights: ...". Returns "" for
// bytes that are of no kind that is known here.
std::string file_kind(std::string_view start);

}  // namespace weft
