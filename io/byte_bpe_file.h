#pragma once
// What a Hugging Face tokenizer.json says, for byte-level BPE: read and checked, nothing that bears
// on ids or text left aside in silence.
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "io/bpe_merges.h"
#include "io/split_pattern.h"

namespace weft {

struct ByteBpeFile {
  struct AddedToken {
    std::string content;
    int32_t id = 0;
    bool special = false;
    bool normalized = false;  // looked for in the normalised text, not in the given one
  };
  enum class Behavior { kIsolated, kRemoved };
  struct Split {
    SplitPattern pattern;
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;  // what lies between the matches is the delimiter
  };

  std::unordered_map<std::string, int32_t> vocab;  // as spelled in the byte alphabet
  BpeMerges merges;
  bool ignore_merges = false;  // a word that is a token is that token
  std::vector<AddedToken> added;
  bool nfc = false;
  std::vector<Split> splits;  // in their order; ByteLevel's own pattern is the last of them
  bool add_prefix_space = false;
  size_t splits_before_prefix = 0;  // how many of `splits` come before the prefix space

  static ByteBpeFile parse(std::string_view json, const std::string& what);
};

}  // namespace weft
