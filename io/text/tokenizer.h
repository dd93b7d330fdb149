#pragma once
// Converts text to SentencePiece ids, as UMT5 and T5 expect them.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

inline constexpr int32_t kEndId = 1;  // </s> of every T5 vocabulary

// A unigram model as lists, from which SentencePiece's own form follows.
struct SentencePieces {
  struct Piece {
    std::string text;
    float score = 0;
    int32_t type = 1;  // 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 a byte
  };
  std::vector<Piece> pieces;  // by id
  std::string charsmap{};     // precompiled_charsmap of the normaliser
  bool add_space_prefix = true, remove_extra_whitespaces = true;

  // The serialized form, as in a spiece.model.
  std::string model() const;
};

class SentencePieceTokenizer {
 public:
  static SentencePieceTokenizer load(const std::string& path);  // path of a spiece.model
  // Messages begin with `what`. Bytes that are not a SentencePiece model throw Error(kModel).
  static SentencePieceTokenizer from_bytes(std::string_view model, const std::string& what);

  SentencePieceTokenizer(SentencePieceTokenizer&&) noexcept;
  SentencePieceTokenizer& operator=(SentencePieceTokenizer&&) noexcept;
  ~SentencePieceTokenizer();

  // Returns the ids of the text's pieces and then </s>. There are at most max_length ids; the last
  // is always </s>. Ill-formed UTF-8 becomes U+FFFD.
  std::vector<int32_t> encode(std::string_view text, int max_length) const;
  std::string decode(const std::vector<int32_t>& ids) const;  // normalised text
  // The text of these ids, which end with </s>, that is lost where only max_ids of them are kept,
  // the last of which is </s> again: from the beginning of its first word.
  std::string text_behind(const std::vector<int32_t>& ids, int64_t max_ids) const;
  int vocab_size() const;

 private:
  struct Impl;
  explicit SentencePieceTokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Returns `model_max_length` of a tokenizer_config.json if it is at most 4096, else 512, because
// models trained without a limit have a huge number there. A missing file or field gives 512, too.
int tokenizer_model_max_length(const std::string& config_path);

}  // namespace weft
