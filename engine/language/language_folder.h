#pragma once
// LanguageFolder: the config and tokenizer of a language model's folder; it turns prompts into ids.
#include <optional>
#include <string>
#include <vector>

#include "io/text/byte_bpe.h"
#include "io/text/chatml.h"
#include "models/causal_decoder/decoder.h"

namespace weft {

struct LanguageFolder {
  std::string path;
  DecoderConfig config;
  ByteBpeTokenizer tokenizer;
  std::vector<int32_t> end_ids;  // ids that end a text; may be empty

  // Reads config.json, generation_config.json and tokenizer.json of a transformers folder. Throws
  // Error(kModel) that says what was found instead and what is legal.
  static LanguageFolder open(const std::string& path);
  // Returns whether the folder's config.json names a model_type that is supported here.
  static bool recognise(const std::string& path);

  // The ids of a chat: the user's turn and the opening of the assistant's turn. kOff has an effect
  // only on models that can think. Throws Error(kModel) for a model without ChatML's tokens.
  std::vector<int32_t> chat(const std::optional<std::string>& system, const std::string& user,
                            Thinking thinking) const;
  // Returns end_ids and the token that ends a turn.
  std::vector<int32_t> chat_end_ids() const;
};

}  // namespace weft
