#pragma once
// Suggestions for flags that are not known.
#include <string>

#include "apps/command_line/flags.h"
#include "io/nearest.h"

namespace weft {

// The flag that a user who typed `word` ("--stepz", "--fp8") most likely means: "--steps",
// "--weights fp8"; "" where none is near.
std::string suggested_flag(Command command, const std::string& word);

}  // namespace weft
