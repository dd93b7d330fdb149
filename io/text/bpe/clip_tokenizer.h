#pragma once
// CLIP's tokenizer (Radford et al. 2021): byte-level BPE of lower-case words, whose last symbol is
// marked with "</w>".
#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "io/text/bpe/bpe_vocab.h"
#include "io/text/split_pattern.h"

namespace weft {

// Const members may be called from several threads.
class ClipTokenizer {
 public:
  // Reads vocab.json and merges.txt of a folder, or the vocabulary and merges of its tokenizer.json
  // where it has no vocab.json. Throws Error(kModel) that names the file and the field.
  static ClipTokenizer open_folder(const std::string& folder);
  // The same of a tokenizer.json.
  static ClipTokenizer open(const std::string& path);
  // Returns whether a tokenizer.json is of this kind: its words end in "</w>". It must be JSON.
  static bool recognise(const std::string& path);
  // `vocab` is an object of token to id, `merges` a list. Messages begin with `what`.
  static ClipTokenizer from_json(const nlohmann::json& vocab, const nlohmann::json& merges,
                                 const std::string& what);

  // Returns <|startoftext|>, the ids of the text and <|endoftext|>, at most max_length >= 2 ids;
  // those two are always there. Ill-formed UTF-8 becomes U+FFFD. Throws Error(kUsage) for more than
  // 1 MiB.
  std::vector<int32_t> encode(std::string_view text, int max_length) const;

 private:
  explicit ClipTokenizer(SplitPattern words) : words_(std::move(words)) {}
  void encode_words(std::string_view text, std::vector<int32_t>& ids) const;

  SplitPattern words_;
  BpeMerges merges_;
  std::array<int32_t, 256> inner_{}, last_{};  // ids of a word's bytes, and of its last byte
  int32_t start_ = 0, end_ = 0;
};

}  // namespace weft
