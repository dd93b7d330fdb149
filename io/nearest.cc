#include "io/nearest.h"

#include <algorithm>
#include <vector>

namespace weft {
namespace {

// Damerau-Levenshtein distance: insertions, deletions, replacements, swaps of two neighbours.
size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i)
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] =
          std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[a.size()][b.size()];
}

std::string without_dashes(const std::string& word) {
  return word.substr(std::min(word.find_first_not_of('-'), word.size()));
}

}  // namespace

std::string nearest(const std::string& word, std::span<const std::string> candidates) {
  const std::string plain = without_dashes(word);
  const size_t allowed = plain.size() <= 2 ? 0 : plain.size() <= 4 ? 1 : plain.size() <= 8 ? 2 : 3;
  std::string best;
  size_t best_distance = allowed + 1;
  for (const std::string& candidate : candidates) {
    const std::string other = without_dashes(candidate);
    // A long word has no near one, and would cost memory by its length.
    if (std::max(plain.size(), other.size()) > std::min(plain.size(), other.size()) + allowed)
      continue;
    const size_t distance = edit_distance(plain, other);
    if (distance >= best_distance) continue;
    best_distance = distance;
    best = candidate;
  }
  if (!best.empty() || plain.size() < 4) return best;
  for (const std::string& candidate : candidates)
    if (without_dashes(candidate).starts_with(plain) &&
        (best.empty() || candidate.size() < best.size()))
      best = candidate;
  return best;
}

std::string did_you_mean(const std::string& suggestion) {
  return suggestion.empty() ? "" : "; did you mean " + suggestion + "?";
}

}  // namespace weft
