#pragma once
// The commit that the program was built from. The build writes the definition (commit.cmake).

namespace weft {

extern const char* const kCommit;  // a short hash, or "unknown" outside a git checkout

}  // namespace weft
