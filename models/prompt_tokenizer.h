#pragma once
// PromptTokenizer: turns a prompt into the ids that a text encoder was trained on.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace weft {

// A prompt that is longer than what the text encoder reads.
struct PromptCut {
  int64_t tokens = 0;  // of the whole prompt
  int64_t read = 0;    // by the text encoder
  std::string lost;    // the text after them, from the beginning of its first word
};

// A prompt as the text encoder reads it.
struct PromptTokens {
  // At most max_ids(), of which the last may be hidden_id() of padding.
  std::vector<int32_t> ids;
  std::optional<PromptCut> cut;  // nullopt where the ids hold all of the prompt
  // The prompt for the encoder that makes one vector of it; empty where the model reads none.
  std::vector<int32_t> pooled_ids{};
};

// Its work is cleaning, the template, and the tokenizer.
class PromptTokenizer {
 public:
  virtual ~PromptTokenizer() = default;
  virtual int64_t max_ids() const = 0;
  virtual PromptTokens read(const std::string& prompt) const = 0;
  // The ids at the beginning of every prompt whose rows the transformer does not read: those of a
  // template.
  virtual int64_t unread_ids() const { return 0; }
  // The rows that a transformer was trained with for a prompt of `rows` rows, padding included.
  virtual int64_t padded_rows(int64_t rows) const = 0;
};

}  // namespace weft
