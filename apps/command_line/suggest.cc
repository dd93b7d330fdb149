#include "apps/command_line/suggest.h"

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

// Names of other programs and common words, for what is a flag with a value here.
struct Synonym {
  const char* word;
  const char* suggestion;
};
constexpr Synonym kSynonyms[] = {
    {"fp32", "--dtype f32"},
    {"float32", "--dtype f32"},
    {"fp16", "--dtype bf16"},
    {"half", "--dtype bf16"},
    {"bfloat16", "--dtype bf16"},
    {"precision", "--dtype"},
    {"cpu", "--device cpu"},
    {"cuda", "--device cuda"},
    {"gpu", "--device cuda"},
    {"quantize", "--weights"},
    {"quantization", "--weights"},
    {"offload", "--resident-layers"},
    {"offload-model", "--resident-layers"},
    {"cpu-offload", "--resident-layers"},
    {"negative", "--negative-prompt"},
    {"frame-count", "--num-frames"},
    {"duration", "--seconds"},
    {"length", "--seconds"},
    {"resolution", "--size"},
    {"scheduler", "--solver"},
    {"sampler", "--solver"},
    {"world-size", "--ranks"},
    {"nproc-per-node", "--ranks"},
    {"outdir", "--output"},
    {"force", "--overwrite"},
    {"debug", "--log-level debug"},
};

}  // namespace

std::string nearest(const std::string& word, std::span<const std::string> candidates) {
  const std::string plain = without_dashes(word);
  const size_t allowed = plain.size() <= 2 ? 0 : plain.size() <= 4 ? 1 : plain.size() <= 8 ? 2 : 3;
  std::string best;
  size_t best_distance = allowed + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(plain, without_dashes(candidate));
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

std::string suggested_flag(Command command, const std::string& word) {
  std::string plain = without_dashes(word.substr(0, word.find('=')));
  std::replace(plain.begin(), plain.end(), '_', '-');
  for (const FlagSpec& spec : flag_table()) {
    if (!(spec.commands & command) || spec.type != FlagType::kText || !spec.legal) continue;
    for (const std::string& value : split(spec.legal, '|'))
      if (value == plain) return std::string("--") + spec.name + " " + value;
  }
  for (const Synonym& synonym : kSynonyms) {
    const std::string suggestion = synonym.suggestion;
    const std::string flag = suggestion.substr(2, suggestion.find(' ') - 2);
    if (plain == synonym.word && find_flag(command, flag)) return suggestion;
  }
  std::vector<std::string> known{"--help", "--help-all"};
  for (const FlagSpec& spec : flag_table())
    if (spec.commands & command)
      for (const std::string& name : spellings(spec))
        if (name.starts_with("--")) known.push_back(name);
  return nearest("--" + plain, known);
}

}  // namespace weft
