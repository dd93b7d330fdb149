#pragma once
// Byte-level BPE as GPT-2, Llama 3 and Qwen take it, from a Hugging Face tokenizer.json.
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

// Whether the file's added tokens (<|im_start|>, <think>) are looked for in a text, or stay the
// characters they are: a text from elsewhere must not be able to bring them in.
enum class AddedTokens { kSplit, kAsText };
enum class SpecialTokens { kKeep, kSkip };

struct TextPart {
  std::string_view text;
  AddedTokens added = AddedTokens::kSplit;
};

// Const members may be called from several threads.
class ByteBpeTokenizer {
 public:
  static ByteBpeTokenizer open(const std::string& path);  // of tokenizer.json
  // `what` stands in messages. Error(kModel) names the field that is not read or not sound.
  static ByteBpeTokenizer from_json(std::string_view json, const std::string& what);

  ByteBpeTokenizer(ByteBpeTokenizer&&) noexcept;
  ByteBpeTokenizer& operator=(ByteBpeTokenizer&&) noexcept;
  ~ByteBpeTokenizer();

  // Added tokens are split off first, the longest of those that begin leftmost; the rest is
  // normalised, split by the file's patterns and merged. Ill-formed UTF-8 reads as U+FFFD.
  // Error(kUsage) over 64 MiB, Error(kModel) when a pattern takes too long.
  std::vector<int32_t> encode(std::string_view text, AddedTokens added = AddedTokens::kSplit) const;
  // The parts as one text: what stands between two added tokens is split into words as a whole. No
  // token is found across two parts; those looked for in the normalised text only where all that
  // stands between two other tokens is kSplit.
  std::vector<int32_t> encode(std::span<const TextPart> parts) const;

  // Bytes that are no UTF-8 become U+FFFD; an id without a token gives nothing.
  std::string decode(std::span<const int32_t> ids,
                     SpecialTokens special = SpecialTokens::kKeep) const;
  // What one id adds to a text, not always whole characters; empty for an id without a token.
  std::string_view bytes_of(int32_t id) const;

  std::optional<int32_t> id_of(std::string_view token) const;  // as spelled in the file
  bool is_special(int32_t id) const;
  int64_t size() const;  // one more than the largest id

 private:
  struct Impl;
  explicit ByteBpeTokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Decodes id by id. What push() and finish() return, joined, is decode() of all the ids.
class StreamingDecoder {
 public:
  // `tokenizer` outlives the decoder.
  StreamingDecoder(const ByteBpeTokenizer& tokenizer, SpecialTokens special)
      : tokenizer_(tokenizer), special_(special) {}

  std::string push(int32_t id);  // the text that is whole by now
  std::string finish();          // U+FFFD where a character was left unfinished

 private:
  const ByteBpeTokenizer& tokenizer_;
  SpecialTokens special_;
  std::string pending_;  // at most three bytes: the beginning of a character
};

}  // namespace weft
