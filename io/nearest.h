#pragma once
// Suggestions for words that are not known.
#include <span>
#include <string>

namespace weft {

// The candidate that `word` is most likely a misspelling of, or "" where none is near: letters
// that are swapped, missing, wrong or too many, or a beginning of the candidate. Dashes at the
// beginning do not count.
std::string nearest(const std::string& word, std::span<const std::string> candidates);

// "; did you mean --steps?"; "" where there is no suggestion.
std::string did_you_mean(const std::string& suggestion);

}  // namespace weft
