#pragma once
// Reads and checks a Hugging Face tokenizer.json for byte-level BPE. A field that would change ids
// or text is honoured or refused, never ignored.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/text/bpe/bpe_vocab.h"
#include "io/text/split_pattern.h"

namespace weft {

struct ByteBpeFile {
  struct AddedToken {
    std::string content;
    int32_t id = 0;
    bool special = false;
    bool normalized = false;  // searched in the normalised text, not in the given one
  };
  enum class Behavior { kIsolated, kRemoved };
  struct Split {
    SplitPattern pattern;
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;  // the text between the matches is the delimiter
  };

  BpeVocab vocab;  // as spelled in the byte alphabet
  BpeMerges merges;
  bool ignore_merges = false;  // a word that is in the vocabulary becomes one token without merging
  std::vector<AddedToken> added;
  bool nfc = false;
  std::vector<Split> splits;  // in their order; ByteLevel's own pattern is the last of them
  bool add_prefix_space = false;
  size_t splits_before_prefix = 0;  // how many of `splits` come before the prefix space

  static ByteBpeFile parse(std::string_view json, const std::string& what);
};

}  // namespace weft
