#pragma once
// Lists of legal words, and suggestions for words that are not among them.
#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "kernels/check.h"

namespace weft {

// The candidate that `word` is most likely a misspelling of, or "" where none is near: letters
// that are swapped, missing, wrong or too many, or a beginning of the candidate. Dashes at the
// beginning do not count.
std::string nearest(const std::string& word, std::span<const std::string> candidates);

// "; did you mean --steps?"; "" where there is no suggestion.
std::string did_you_mean(const std::string& suggestion);

// "a, b, c": the words of a list, or those that `word_of` makes of its items.
template <class List, class WordOf = std::identity>
std::string listed(const List& list, WordOf word_of = {}) {
  std::string text;
  for (const auto& item : list)
    text += (text.empty() ? "" : ", ") + std::string(std::invoke(word_of, item));
  return text;
}

// The value of an enumeration whose values have these names. Error(kUsage) lists them.
template <class Value, class Names>
Value value_named(const Names& names, std::string_view name, const std::string& what) {
  const auto found = std::ranges::find(names, name);
  if (found == std::end(names))
    throw Error(ErrorKind::kUsage,
                what + " '" + std::string(name) + "' is not known; legal: " + listed(names));
  return static_cast<Value>(found - std::begin(names));
}

}  // namespace weft
