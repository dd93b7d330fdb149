#pragma once
// Reads an untrusted file of limited size.
#include <string>

#include "kernels/check.h"

namespace weft {

// Returns the bytes of a regular file of at most `max_bytes`. Any fault is an Error of this kind
// that names the path; opening never waits, as it would for a pipe without a writer.
std::string read_input_file(const std::string& path, size_t max_bytes, ErrorKind kind);

}  // namespace weft
