#pragma once
// Suggestions for words that are not known.
#include <span>
#include <string>

#include "apps/command_line/flags.h"

namespace weft {

// The candidate that `word` is most likely a misspelling of, or "" where none is near: letters
// that are swapped, missing, wrong or too many, or a beginning of the candidate.
std::string nearest(const std::string& word, std::span<const std::string> candidates);

// The flag that a user who typed `word` ("--stepz", "--fp8") most likely means: "--steps",
// "--weights fp8"; "" where none is near.
std::string suggested_flag(Command command, const std::string& word);

}  // namespace weft
