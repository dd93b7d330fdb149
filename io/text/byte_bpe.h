#pragma once
// Byte-level BPE as GPT-2, Llama 3 and Qwen use it, read from a Hugging Face tokenizer.json.
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

// kSplit turns the file's added tokens (<|im_start|>, <think>) in a text into their ids. kAsText
// keeps them as ordinary characters, so that untrusted text cannot inject such tokens.
enum class AddedTokens { kSplit, kAsText };
enum class SpecialTokens { kKeep, kSkip };

struct TextPart {
  std::string_view text;
  AddedTokens added = AddedTokens::kSplit;
};

// A vocabulary and its merges as lists.
struct ByteBpeLists {
  enum class Kind : uint8_t { kNormal, kAdded, kSpecial, kUnused };
  struct Token {
    std::string text;  // of a normal token in the byte alphabet
    Kind kind = Kind::kNormal;
  };
  std::vector<Token> tokens;        // by id
  std::vector<std::string> merges;  // "left right"
};

// Const members may be called from several threads.
class ByteBpeTokenizer {
 public:
  static ByteBpeTokenizer open(const std::string& path);  // path of a tokenizer.json
  // Opens the tokenizer.json of a folder. Where only vocab.json, merges.txt and
  // tokenizer_config.json lie there, texts are split as Qwen2's are.
  static ByteBpeTokenizer open_folder(const std::string& folder);
  // Texts are split as Qwen2's are. Messages begin with `what`.
  static ByteBpeTokenizer from_lists(const ByteBpeLists& lists, const std::string& what);
  // Messages begin with `what`. Throws Error(kModel) that names the field that is not supported or
  // not valid.
  static ByteBpeTokenizer from_json(std::string_view json, const std::string& what);

  ByteBpeTokenizer(ByteBpeTokenizer&&) noexcept;
  ByteBpeTokenizer& operator=(ByteBpeTokenizer&&) noexcept;
  ~ByteBpeTokenizer();

  // Returns the ids of a text. Added tokens are split off first, the longest of those that begin
  // leftmost. The rest is normalised, split by the file's patterns and merged. Ill-formed UTF-8
  // becomes U+FFFD. Throws Error(kUsage) for more than 64 MiB, and Error(kModel) when a pattern
  // takes too long.
  std::vector<int32_t> encode(std::string_view text, AddedTokens added = AddedTokens::kSplit) const;
  // Encodes the parts as one text: the text between two added tokens is split into words as a
  // whole, even if it spans parts. An added token must lie within one part. Tokens that are
  // searched in the normalised text are found only if all of the text between two other tokens is
  // kSplit.
  std::vector<int32_t> encode(std::span<const TextPart> parts) const;

  // Bytes that are not UTF-8 become U+FFFD. An id without a token adds no text.
  std::string decode(std::span<const int32_t> ids,
                     SpecialTokens special = SpecialTokens::kKeep) const;
  // The bytes that one id adds to a text. They may be parts of a character, and are empty for an id
  // without a token.
  std::string_view bytes_of(int32_t id) const;

  std::optional<int32_t> id_of(std::string_view token) const;  // as spelled in the file
  bool is_special(int32_t id) const;
  int64_t size() const;  // one more than the largest id

 private:
  struct Impl;
  explicit ByteBpeTokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Decodes id by id. The concatenated results of push() and finish() equal decode() of all ids.
class StreamingDecoder {
 public:
  // `tokenizer` must outlive the decoder.
  StreamingDecoder(const ByteBpeTokenizer& tokenizer, SpecialTokens special)
      : tokenizer_(tokenizer), special_(special) {}

  std::string push(int32_t id);  // returns the characters that are complete now
  std::string finish();          // returns U+FFFD if a character is incomplete

 private:
  const ByteBpeTokenizer& tokenizer_;
  SpecialTokens special_;
  std::string pending_;  // at most three bytes: the beginning of a character
};

}  // namespace weft
