#include "apps/command_line/suggest.h"

#include <algorithm>
#include <vector>

namespace weft {
namespace {

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
    {"num-inference-steps", "--steps"},
    {"cfg-scale", "--guidance-scale"},
    {"ckpt-dir", "--model"},
    {"frame-num", "--num-frames"},
    {"width", "--size"},
    {"height", "--size"},
    {"tp", "--layout"},
    {"pp", "--layout"},
    {"ulysses", "--layout"},
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
    {"verbose", "--log-level debug"},
};

}  // namespace

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
    if (spec.commands & command) known.push_back(std::string("--") + spec.name);
  return nearest("--" + plain, known);
}

}  // namespace weft
